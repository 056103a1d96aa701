// Folders that are read beside the process that writes them: after every refresh a view has the
// rows of one group, never of a part of it; damage is an error that names the file.
#include "index/durable/folder_view.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "index/durable/durable.hpp"
#include "index/durable/durable_testing.hpp"

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
  test_damage_is_named(root + "/damage");
  test_beside_a_writer(root + "/writer");
  fs::remove_all(root);
}
