// Folders that are read beside the process that writes them: after every refresh a view has the
// rows of one group, never of a part of it; damage is an error that names the file.
#include "index/durable/folder_view.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "index/durable/durable.hpp"
#include "index/durable/durable_testing.hpp"
#include "index/durable/files_simulated.hpp"

using namespace headrace;
using namespace headrace::index;
using namespace headrace::index::testing;

namespace {

namespace fs = std::filesystem;

using Map = DurableMap<std::uint64_t>;
using View = FolderView<std::uint64_t>;
using Model = State<std::uint64_t>;

constexpr auto kKeys = KeyKind::unsigned_integer;
constexpr std::uint64_t kCodes = 500;

Map::Options options() {
  Map::Options options;
  options.background = false;
  options.automatic_checkpoints = false;
  options.block_bytes = 64;
  return options;
}

// The changes of a group follow from its number.
void commit_next(Map& map, Model& model) {
  std::mt19937_64 random(map.folder().sequence() + 1);
  Map::Batch batch;
  random_changes(random, batch, model, kCodes, 1 + random() % 40);
  map.commit(batch);
}

Model rows_of(const View& view) { return state_of<std::uint64_t>(view.tree()); }

void test_refresh(const std::string& folder) {
  Map map(folder, options());
  Model model;
  View view(folder + "/", kKeys);
  CHECK(view.path() == folder && view.sequence() == 0 && view.tree().size() == 0);
  for (int group = 1; group <= 60; ++group) {
    commit_next(map, model);
    if (group % 7 == 0) map.checkpoint();  // the logs that the view has read are gone then
    if (group % 3 == 0) continue;          // some refreshes read more than one group
    CHECK(view.refresh());
    CHECK(view.sequence() == map.folder().sequence());
    CHECK(rows_of(view) == model);
    CHECK(!view.refresh());
    CHECK(rows_of(View(folder, kKeys)) == model);
  }
  view.refresh();
  const std::vector<std::uint64_t> codes{7, 3, ~std::uint64_t{0}};
  map.build(codes.data(), codes.data(), codes.size());
  CHECK(view.refresh());
  CHECK(rows_of(view) == Model({{3, 3}, {7, 7}, {~std::uint64_t{0}, ~std::uint64_t{0}}}));
  map.close();
  view.refresh();
  CHECK(view.tree().size() == codes.size());
}

// Every refresh made all changes of the log again.
void test_a_refresh_makes_new_changes_alone() {
  struct CountingMap : CodeMap<std::uint64_t> {
    std::size_t changes = 0;
    bool insert_or_assign(std::uint64_t code, std::uint64_t value) {
      ++changes;
      return CodeMap::insert_or_assign(code, value);
    }
  };
  SimulatedFiles files;
  auto of_files = options();
  of_files.files = &files;
  Map map("f", of_files);
  FolderView<std::uint64_t, CountingMap> view("f", kKeys, files);
  Map::Batch batch;
  for (std::uint64_t code = 1; code <= 5; ++code) {
    batch.clear();
    batch.put(code, code);
    map.commit(batch);
    CHECK(view.refresh() && view.tree().size() == code && view.tree().changes == code);
  }
  map.commit(batch);
  CHECK(view.refresh() && view.tree().changes == 6 && view.sequence() == 6);
}

// A view that has read the log which begins with a replacement, before the new rows were there.
void test_replacement_behind_a_log(const std::string& folder) {
  const auto copy = folder + "-copy";
  Map map(folder, options());
  Model model;
  for (int group = 0; group < 3; ++group) commit_next(map, model);
  fs::copy(folder, copy);
  const std::vector<std::uint64_t> codes{2, 9};
  map.build(codes.data(), codes.data(), codes.size());
  const auto file = [](const std::string& in, const char* kind) { return in + kind + "1"; };
  fs::copy_file(file(folder, "/changes-"), file(copy, "/changes-"));
  View view(copy, kKeys);
  CHECK(rows_of(view) == model);
  fs::copy_file(file(folder, "/snapshot-"), file(copy, "/snapshot-"));
  fs::remove(copy + "/changes-0");
  CHECK(view.refresh());
  CHECK(rows_of(view) == Model({{2, 2}, {9, 9}}));
}

// What a group has written of itself so far is no change; all of it is one.
void test_torn_end(const std::string& folder) {
  std::string log;
  std::uintmax_t before = 0, after = 0;  // the last group, in bytes of the log
  Model model, next;
  {
    Map map(folder, options());
    for (int group = 0; group < 5; ++group) commit_next(map, model);
    log = folder + "/changes-0";
    before = fs::file_size(log);
    next = model;
    commit_next(map, next);
    after = fs::file_size(log);
  }
  const auto copy = folder + "-copy";
  fs::create_directory(copy);
  CHECK(after > before);
  fs::copy_file(log, copy + "/changes-0");
  fs::resize_file(copy + "/changes-0", before);
  View view(copy, kKeys);
  CHECK(rows_of(view) == model);
  for (auto bytes = before + 1; bytes <= after; ++bytes) {
    fs::copy_file(log, copy + "/changes-0", fs::copy_options::overwrite_existing);
    fs::resize_file(copy + "/changes-0", bytes);
    CHECK(view.refresh() == (bytes == after));
    CHECK(rows_of(view) == (bytes == after ? next : model));
    if (bytes % 16 == 0) CHECK(rows_of(View(copy, kKeys)) == rows_of(view));
  }
}

Map::Options options_on(SimulatedFiles& files) {
  auto on_disk = options();
  on_disk.files = &files;
  return on_disk;
}

// A writer cuts an end that is not whole, and commits a group of as many bytes: the length of the
// log does not tell.
void test_torn_end_of_as_many_bytes() {
  SimulatedFiles files;
  Model model;
  std::size_t whole = 0, torn = 0;  // bytes of the log
  {
    Map map("f", options_on(files));
    commit_next(map, model);
    whole = files.bytes("f/changes-0").size();
    Model unused;
    commit_next(map, unused);
    torn = files.bytes("f/changes-0").size();
    files.end_process();
  }
  files.bytes("f/changes-0").resize(whole);
  files.bytes("f/changes-0").resize(torn);
  View view("f", kKeys, files);
  CHECK(rows_of(view) == model);
  Map map("f", options_on(files));
  commit_next(map, model);
  CHECK(files.bytes("f/changes-0").size() == torn);
  CHECK(view.refresh());
  CHECK(rows_of(view) == model);
}

// The rows of a folder that was removed stayed beside those of the one in its place, or for good.
void test_another_folder_in_its_place() {
  for (const bool replaced : {false, true}) {
    SimulatedFiles files;
    auto write = [&](const std::vector<std::uint64_t>& codes) {
      for (const auto& name : files.list("f")) files.remove(join_path("f", name));
      Map map("f", options_on(files));
      Map::Batch batch;
      for (const auto code : codes) batch.put(code, code);
      if (replaced) {
        map.build(codes.data(), codes.data(), codes.size());
      } else {
        map.commit(batch);
      }
    };
    write({2, 9});
    View view("f", kKeys, files);
    CHECK(rows_of(view) == Model({{2, 2}, {9, 9}}));
    write({3, 5});
    CHECK(view.refresh());
    CHECK(rows_of(view) == Model({{3, 3}, {5, 5}}));
    CHECK(!view.refresh());
  }
}

// Files that call a function before each operation on them.
class ObservedFiles final : public Files {
 public:
  explicit ObservedFiles(Files& inner) : inner_(inner) {}

  std::function<void()> before = [] {};

  std::unique_ptr<File> open(const std::string& path, Open how) override {
    return observed().open(path, how);
  }
  Mapping map(const std::string& path) override { return observed().map(path); }
  Mapping read(const std::string& path) override { return observed().read(path); }
  FileStamp stamp(const std::string& path) override { return observed().stamp(path); }
  std::vector<std::string> list(const std::string& path) override { return observed().list(path); }
  void make_folder(const std::string& path) override { observed().make_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    observed().rename(from, to);
  }
  void remove(const std::string& path) override { observed().remove(path); }
  void sync_folder(const std::string& path) override { observed().sync_folder(path); }
  std::shared_ptr<const void> lock(const std::string& path) override {
    return observed().lock(path);
  }

 private:
  Files& observed() {
    before();
    return inner_;
  }

  Files& inner_;
};

// A writer, and the rows after each of its groups and replacements.
class Writer {
 public:
  explicit Writer(Files& files) : files_(files) { open(); }

  void commit() {
    auto model = states.back();
    commit_next(*map_, model);
    states.push_back(model);
  }
  void checkpoint() { map_->checkpoint(); }
  void replace() {
    const std::vector<std::uint64_t> codes{7, 8, 9};
    states.push_back({{7, 7}, {8, 8}, {9, 9}});
    map_->build(codes.data(), codes.data(), codes.size());
  }
  void reopen() {
    map_->close();
    map_.reset();
    open();
  }

  std::vector<Model> states{{}};

 private:
  void open() {
    auto of_files = options();
    of_files.files = &files_;
    map_ = std::make_unique<Map>("f", of_files);
  }

  Files& files_;
  std::unique_ptr<Map> map_;
};

using Steps = std::vector<void (Writer::*)()>;

// The first of the states, from one on, that a view has.
std::size_t state_of_view(const View& view, const std::vector<Model>& states, std::size_t from) {
  const auto rows = rows_of(view);
  while (from < states.size() && states[from] != rows) ++from;
  CHECK(from < states.size());
  return from;
}

// A writer takes a step between any two operations of a refresh: the view has the rows of one
// group, and never those of an earlier one than before.
void test_steps_within_a_refresh() {
  for (int first = 0;; ++first) {
    SimulatedFiles files;
    Writer writer(files);
    for (int group = 0; group < 3; ++group) writer.commit();
    ObservedFiles observed(files);
    View view("f", kKeys, observed);
    writer.commit();
    Steps steps{&Writer::commit,  &Writer::checkpoint, &Writer::commit,
                &Writer::replace, &Writer::commit,     &Writer::reopen};
    std::size_t operations = 0, step = 0;
    observed.before = [&] {
      if (operations++ >= static_cast<std::size_t>(first) && step < steps.size()) {
        (writer.*steps[step++])();
      }
    };
    view.refresh();
    const auto state = state_of_view(view, writer.states, 3);
    if (step == 0) return;  // a refresh has no more operations
    view.refresh();
    CHECK(state_of_view(view, writer.states, state) == writer.states.size() - 1);
  }
}

// A refresh begins while a writer is between two of its own operations, and the writer goes on
// between two of the refresh. A view that had listed a log beside the rows before a replacement
// read it with a group that follows the replacement.
void test_a_refresh_within_a_step(const Steps& steps) {
  for (int pause = 0, paused = 1; paused; ++pause) {
    for (int resume = 0, resumed = 1; resumed; ++resume) {
      SimulatedFiles files;
      ObservedFiles of_writer(files), of_view(files);
      Writer writer(of_writer);
      for (int group = 0; group < 3; ++group) writer.commit();
      const auto before = writer.states.size() - 1;
      View view("f", kKeys, of_view);
      std::binary_semaphore refresh{0}, go_on{0};
      std::thread thread;
      int operations = paused = resumed = 0;
      of_writer.before = [&] {
        if (operations++ != pause) return;
        paused = 1;
        refresh.release();
        go_on.acquire();
      };
      auto run = [&] {
        for (const auto step : steps) (writer.*step)();
        if (!paused) refresh.release();
      };
      thread = std::thread(run);
      refresh.acquire();
      int reads = 0;
      auto end_of_writer = [&] {
        go_on.release();
        thread.join();
      };
      of_view.before = [&] {
        if (reads++ != resume || !paused) return;
        resumed = 1;
        end_of_writer();
      };
      view.refresh();
      if (thread.joinable()) end_of_writer();
      const auto state = state_of_view(view, writer.states, before);
      view.refresh();
      CHECK(state_of_view(view, writer.states, state) == writer.states.size() - 1);
    }
  }
}

void flip_byte(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  char byte = 0;
  CHECK(file.seekg(at).get(byte));
  byte = static_cast<char>(byte ^ 0x40);
  CHECK(file.seekp(at).put(byte));
}

void test_damage_is_named(const std::string& folder) {
  {
    Map map(folder, options());
    Model model;
    for (int group = 0; group < 20; ++group) commit_next(map, model);
    map.checkpoint();
    for (int group = 0; group < 5; ++group) commit_next(map, model);
  }
  std::string snapshot, log;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("snapshot-")) snapshot = entry.path().string();
    if (name.starts_with("changes-")) log = entry.path().string();
  }
  CHECK(!snapshot.empty() && !log.empty());
  const auto open = [&] { View(folder, kKeys); };
  for (const auto& path : {snapshot, log}) {
    const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
    flip_byte(path, middle);
    CHECK(thrown<DamageError>(open).find(path) != std::string::npos);
    flip_byte(path, middle);
    open();
  }
  fs::rename(log, log + ".away");  // the snapshot's own log
  CHECK(!thrown<std::system_error>(open).empty());
  fs::rename(log + ".away", log);
  const auto floating = [&] { View(folder, KeyKind::floating); };
  CHECK(!thrown<std::invalid_argument>(floating).empty());
  const auto narrow = [&] { FolderView<std::uint32_t>(folder, kKeys); };
  CHECK(!thrown<std::invalid_argument>(narrow).empty());
  const auto empty = folder + "-empty";
  fs::create_directory(empty);
  const auto text = thrown<std::runtime_error>([&] { View(empty, kKeys); });
  CHECK(text == empty + ": has no files of a durable map");
}

// A view that refreshes while another process commits and writes snapshots.
void test_beside_a_writer(const std::string& folder) {
  constexpr std::uint64_t kGroups = 400;
  {
    Map(folder, options());
  }
  const auto writer = ::fork();
  CHECK(writer >= 0);
  if (writer == 0) {
    Map map(folder, options());
    Model unused;
    while (map.folder().sequence() < kGroups) {
      commit_next(map, unused);
      if (map.folder().sequence() % 50 == 0) map.checkpoint();
    }
    ::_exit(0);
  }
  View view(folder, kKeys);
  Model model;
  std::uint64_t in_model = 0;
  int status = 0;
  for (bool running = true; running;) {
    running = ::waitpid(writer, &status, WNOHANG) == 0;
    view.refresh();
    for (; in_model < view.sequence(); ++in_model) {
      std::mt19937_64 random(in_model + 1);
      Map::Batch unused;
      random_changes(random, unused, model, kCodes, 1 + random() % 40);
    }
    CHECK(in_model == view.sequence());  // it never goes back
    CHECK(rows_of(view) == model);
  }
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(view.sequence() == kGroups);
}

}  // namespace

int main() {
  char name[] = "/tmp/headrace-view-XXXXXX";
  CHECK(::mkdtemp(name));
  const std::string root = name;
  test_refresh(root + "/refresh");
  test_a_refresh_makes_new_changes_alone();
  test_replacement_behind_a_log(root + "/behind");
  test_torn_end(root + "/torn");
  test_torn_end_of_as_many_bytes();
  test_another_folder_in_its_place();
  test_steps_within_a_refresh();
  test_a_refresh_within_a_step({&Writer::replace, &Writer::commit});
  test_a_refresh_within_a_step({&Writer::commit, &Writer::checkpoint, &Writer::commit});
  test_a_refresh_within_a_step({&Writer::commit, &Writer::reopen, &Writer::commit});
  test_damage_is_named(root + "/damage");
  test_beside_a_writer(root + "/writer");
  fs::remove_all(root);
}
