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
#include <string>
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

// Files of which a writer changes some before operations of a reader.
class SteppedFiles final : public Files {
 public:
  using Steps = std::vector<std::function<void()>>;

  explicit SteppedFiles(Files& inner) : inner_(inner) {}

  // From the operation on that so many precede, one step before each.
  void begin(int operation, Steps steps) {
    operations_left_ = operation;
    steps_ = std::move(steps);
    next_ = 0;
  }
  std::size_t steps_done() const { return next_; }

  Mapping map(const std::string& path) override { return stepped().map(path); }
  Mapping read(const std::string& path) override { return stepped().read(path); }
  FileStamp stamp(const std::string& path) override { return stepped().stamp(path); }
  std::vector<std::string> list(const std::string& path) override { return stepped().list(path); }

  std::unique_ptr<File> open(const std::string& path, Open how) override {
    return inner_.open(path, how);
  }
  void make_folder(const std::string& path) override { inner_.make_folder(path); }
  void rename(const std::string& from, const std::string& to) override { inner_.rename(from, to); }
  void remove(const std::string& path) override { inner_.remove(path); }
  void sync_folder(const std::string& path) override { inner_.sync_folder(path); }
  std::shared_ptr<const void> lock(const std::string& path) override { return inner_.lock(path); }

 private:
  Files& stepped() {
    if (operations_left_-- <= 0 && next_ < steps_.size()) steps_[next_++]();
    return inner_;
  }

  Files& inner_;
  int operations_left_ = 0;
  Steps steps_;
  std::size_t next_ = 0;
};

// A writer's commits, checkpoints, replacement and closing between any two operations on files of
// one refresh: the view has the rows of one group, and never those of an earlier one than before.
void test_a_writer_within_a_refresh() {
  std::size_t refreshes = 0;
  for (int operation = 0;; ++operation) {
    SimulatedFiles files;
    auto opened = [&files] { return std::make_unique<Map>("f", options_on(files)); };
    auto map = opened();
    std::vector<Model> states{{}};
    auto commit = [&] {
      auto model = states.back();
      commit_next(*map, model);
      states.push_back(model);
    };
    auto checkpoint = [&] { map->checkpoint(); };
    auto replace = [&] {
      const std::vector<std::uint64_t> codes{7, map->folder().sequence()};
      map->build(codes.data(), codes.data(), codes.size());
      states.push_back({{codes[0], codes[0]}, {codes[1], codes[1]}});
    };
    auto reopen = [&] {
      map->close();
      map = opened();
    };
    for (int group = 0; group < 3; ++group) commit();
    SteppedFiles stepped(files);
    View view("f", kKeys, stepped);
    commit();
    stepped.begin(operation, {commit, checkpoint, commit, replace, commit, reopen});
    std::size_t state = states.size() - 2;
    for (auto done = stepped.steps_done() + 1; done != stepped.steps_done(); ++refreshes) {
      done = stepped.steps_done();
      view.refresh();
      const auto rows = rows_of(view);
      while (state < states.size() && states[state] != rows) ++state;
      CHECK(state < states.size());
    }
    CHECK(rows_of(view) == states.back());
    if (stepped.steps_done() == 0) break;
  }
  CHECK(refreshes > 10);
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
  test_replacement_behind_a_log(root + "/behind");
  test_torn_end(root + "/torn");
  test_torn_end_of_as_many_bytes();
  test_another_folder_in_its_place();
  test_a_writer_within_a_refresh();
  test_damage_is_named(root + "/damage");
  test_beside_a_writer(root + "/writer");
  fs::remove_all(root);
}
