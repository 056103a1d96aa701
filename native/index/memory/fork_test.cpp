// Forks beside maps. A child that merely exited wrote into its parent's log, and the folder did not
// open again; one that was forked while another thread was within a batch waited for that thread's
// lock for ever; a child's copy of a folder's lock kept its parent out.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "index/durable/durable.hpp"
#include "index/durable/durable_testing.hpp"
#include "index/maps/dynamic_map.hpp"
#include "index/maps/row_map.hpp"
#include "index/maps/sharded.hpp"
#include "index/memory/concurrent.hpp"
#include "process_testing.hpp"

#if !defined(__SANITIZE_THREAD__)  // which calls sysconf before anything else runs
namespace {

std::atomic<bool> hold_sysconf{false}, in_sysconf{false};

}  // namespace

// The system's, which takes as long as the test says.
extern "C" long sysconf(int name) noexcept {
  in_sysconf = in_sysconf || hold_sysconf;
  while (hold_sysconf) std::this_thread::yield();
  return reinterpret_cast<long (*)(int)>(::dlsym(RTLD_NEXT, "sysconf"))(name);
}
#endif

using namespace headrace;
using namespace headrace::index;
using headrace::index::testing::Hooks;
using headrace::index::testing::StandardMap;
using headrace::testing::in_child;
using headrace::testing::status_of;

namespace {

using Map = DurableMap<std::uint64_t, StandardMap<std::uint64_t>>;

std::unique_ptr<Map> static_map;  // destroyed by exit(), in a child too

void commit(Map& map, std::uint64_t first, std::uint64_t end) {
  Map::Batch batch;
  for (; first < end; ++first) {
    batch.clear();
    batch.put(first, first);
    map.commit(batch, Sync::yes);
  }
}

std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    contents[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return contents;
}

// A child that waits for the end of a pipe and then calls exit().
class ExitingChild {
 public:
  ExitingChild() {
    std::array<int, 2> ends{};
    CHECK(::pipe(ends.data()) == 0);
    child_ = ::fork();
    CHECK(child_ >= 0);
    if (child_ == 0) {
      char unused = 0;
      ::close(ends[1]);
      if (::read(ends[0], &unused, 1) != 0) ::_exit(1);
      std::exit(0);
    }
    ::close(ends[0]);
    end_ = ends[1];
  }
  void exit() {
    ::close(end_);
    CHECK(status_of(child_) == 0);
  }

 private:
  pid_t child_;
  int end_;
};

// The child exits while the parent's map is open, after it was closed, or before more is committed.
void test_child_that_exits(const std::string& folder) {
  enum class Exits { after_close, while_open, before_commits };
  for (const auto exits : {Exits::after_close, Exits::while_open, Exits::before_commits}) {
    std::filesystem::remove_all(folder);
    static_map = std::make_unique<Map>(folder);
    commit(*static_map, 0, 100);
    ExitingChild child;
    commit(*static_map, 100, 200);
    if (exits == Exits::after_close) static_map->close();
    const auto before = contents_of(folder);
    child.exit();
    CHECK(contents_of(folder) == before);
    if (exits == Exits::before_commits) commit(*static_map, 200, 210);
    static_map.reset();
    CHECK(Map(folder).size() == (exits == Exits::before_commits ? 210 : 200));
  }
}

// Every member is refused by name in a child, and nothing is written.
void test_child_that_uses_the_map(const std::string& folder) {
  std::filesystem::remove_all(folder);
  auto map = std::make_unique<Map>(folder);
  commit(*map, 0, 10);
  const auto before = contents_of(folder);
  in_child([&] {
    std::uint64_t value = 0;
    Map::Batch batch;
    batch.put(1, 2);
    const std::vector<std::function<void()>> actions{
        [&] { map->commit(batch); },
        [&] { map->sync(); },
        [&] { map->get(1, value); },
        [&] { map->scan(0, 1, &value, &value); },
        [&] { map->size(); },
        [&] { map->checkpoint(); },
        [&] { map->wait_for_checkpoint(); },
        [&] { map->build(&value, &value, 1); },
        [&] { map->tree(); },
        [&] { map->in_tree(); },
        [&] { map->broken(); },
        [&] { map->folder(); },
    };
    for (const auto& action : actions) CHECK(thrown<ForkError>(action).starts_with(folder + ": "));
    map->close();
    map.reset();
  });
  in_child([&] {
    auto text = thrown<std::runtime_error>([&] { Map opened(folder); });
    CHECK(text.find("is open already") != std::string::npos);
  });
  CHECK(contents_of(folder) == before);
  commit(*map, 10, 11);
}

void test_child_of_a_folder(const std::string& folder) {
  std::filesystem::remove_all(folder);
  std::optional<DurableFolder> opened;
  opened.emplace(folder, 8, DurableOptions{});
  opened->load();
  const auto before = contents_of(folder);
  in_child([&] {
    Changes changes(8);
    CHECK(thrown<ForkError>([&] { opened->commit(changes, Sync::yes); }).starts_with(folder));
    CHECK(thrown<ForkError>([&] { opened->checkpoint(); }).starts_with(folder));
    CHECK(thrown<ForkError>([&] { opened->load(); }).starts_with(folder));
    opened.reset();
  });
  CHECK(contents_of(folder) == before);
  opened->checkpoint();
  opened->wait();
}

// A child that lives on holds no lock, and may open the folder itself.
void test_lock_is_the_parents(const std::string& folder) {
  std::filesystem::remove_all(folder);
  for (int opening = 0; opening < 20; ++opening) {
    auto map = std::make_unique<Map>(folder);
    ExitingChild child;
    commit(*map, static_cast<std::uint64_t>(opening), static_cast<std::uint64_t>(opening) + 1);
    map.reset();
    CHECK(Map(folder).size() == static_cast<std::size_t>(opening) + 1);
    in_child([&] { Map opened(folder); });
    child.exit();
  }
}

// Threads that build the tree and write a snapshot do not exist in a child, which must not wait for
// them, and their files are the parent's.
void test_fork_beside_threads(const std::string& folder) {
  std::filesystem::remove_all(folder);
  Map::Options options;
  options.build_at_once = 0;
  {
    Map map(folder, options);
    const std::vector<std::uint64_t> codes{1, 2, 3};
    map.build(codes.data(), codes.data(), codes.size());
  }
  Hooks::hold_build = true;
  auto map = std::make_unique<Map>(folder, options);
  for (int round = 0; round < 10; ++round) {
    commit(*map, 10, 30);
    map->checkpoint();
    in_child([&] {
      map->close();
      map.reset();
    });
    map->wait_for_checkpoint();
  }
  Hooks::hold_build = false;
  map->close();
  map.reset();
  CHECK(Map(folder, options).size() == 23);
}

// A child crashed that was forked while another thread had a file open, or a map of rows as a local
// variable: these were listed by addresses on that thread's stack, whose memory the child's own
// threads use.
void test_stack_of_a_thread_that_a_child_lacks([[maybe_unused]] const std::string& folder) {
// As below: no thread can be started in the child.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  std::filesystem::create_directory(folder);
  std::atomic<bool> begun = false;
  std::atomic<bool> ended = false;
  std::thread other([&] {
    const RowMap rows(KeyType::uint64, 1);
    begun = true;
    while (!ended) system_files().sync_folder(folder);
  });
  while (!begun) std::this_thread::yield();
  for (int fork = 0; fork < 10; ++fork) {
    in_child([] {
      std::thread([] {
        volatile char stack[std::size_t{1} << 20];
        for (auto& byte : stack) byte = 'x';
      }).join();
      in_child([] {});  // calls all listeners
    });
  }
  ended = true;
  other.join();
#endif
}

constexpr int kForks = 40;

// Children of forks in the midst of batches find a whole map, of some batches, and change it.
void test_fork_in_a_batch_of_a_dynamic_map() {
  constexpr std::uint64_t kBatchKeys = 20'000;
  const auto map = make_dynamic_map(8);
  std::atomic<bool> ended = false;
  std::atomic<int> batches = 0;
  std::thread writer([&] {
    std::mt19937_64 random(5);  // NOLINT: the same sequence in every run
    std::vector<std::uint64_t> codes(kBatchKeys);
    while (!ended) {
      for (auto& code : codes) code = random();
      map->insert_or_assign({codes.data(), codes.size(), KeyType::uint64}, codes.data());
      if (++batches % 20 == 0) map->clear();
      std::this_thread::yield();
    }
  });
  while (batches == 0) std::this_thread::yield();
  for (int fork = 0; fork < kForks; ++fork) {
    in_child([&] {
      CHECK(map->size() % kBatchKeys == 0);
      map->verify();
      const std::uint64_t code = 7;
      CHECK(map->insert_or_assign({&code, 1, KeyType::uint64}, &code) == 1);
      const auto copied = map->copy();
      CHECK(copied->size() == map->size());
    });
  }
  ended = true;
  writer.join();
  map->verify();
}

void test_fork_beside_writers_of_shards() {
  ShardedMap<std::uint64_t> map(4);
  std::atomic<bool> ended = false;
  std::vector<std::thread> threads;
  for (std::uint64_t number = 0; number < 2; ++number) {
    threads.emplace_back([&map, &ended, number] {
      std::mt19937_64 random(number);  // NOLINT: the same sequence in every run
      for (std::uint64_t i = 0, value = 0; !ended; ++i) {
        map.insert_or_assign(random() % 50'000, i);
        map.get(random() % 50'000, value);
        if (i % 64 == 0) std::this_thread::yield();
      }
    });
  }
  for (int fork = 0; fork < kForks; ++fork) {
    in_child([&] {
      map.verify();
      std::uint64_t value = 0;
      for (std::uint64_t code = 0; code < 100; ++code) {
        map.insert_or_assign(code, code);
        CHECK(map.get(code, value) && value == code);
      }
// ThreadSanitizer ends a child that starts threads, as its parent had some. AddressSanitizer (of
// gcc 12) leaves locks of its allocator to the child that other threads of the parent held: a new
// thread waits for them.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
      std::thread reader([&] { CHECK(map.get(7, value) && value == 7); });
      reader.join();
#endif
    });
  }
  ended = true;
  for (auto& thread : threads) thread.join();
  map.verify();
}

// Forks at each release of memory, once it is to.
std::atomic<bool> forks_at_releases{false};

template <class T>
struct Forking {
  using value_type = T;
  Forking() = default;
  template <class U>
  Forking(const Forking<U>&) {}
  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* block, std::size_t count) {
    if (forks_at_releases) in_child([] {});
    std::allocator<T>().deallocate(block, count);
  }
  friend bool operator==(const Forking&, const Forking&) { return true; }
};

// A fork of another thread waited for ever for locks that had ended.
void test_fork_while_shards_are_replaced() {
  using Sharded = ShardedMap<std::uint64_t, Forking<std::byte>>;
  Sharded map(4);
  for (std::uint64_t code = 0; code < 100; ++code) map.insert(code, code);
  Sharded replacement(2);
  forks_at_releases = true;
  map = std::move(replacement);
  replacement = Sharded(1);
  forks_at_releases = false;
  CHECK(map.shards() == 2 && map.insert(1, 2));
}

#if !defined(__SANITIZE_THREAD__)
void build_a_map() {
  const std::array<std::uint64_t, 3> codes{1, 2, 3};
  CodeMap<std::uint64_t> map;
  map.build(codes.data(), codes.data(), codes.size());
  CHECK(map.size() == codes.size());
}

// A local static of the first map that is built was for ever half made in a child.
void test_fork_beside_the_first_map() {
  hold_sysconf = true;
  std::atomic<bool> built{false};
  std::thread builder([&] {
    build_a_map();
    built = true;
  });
  while (!built && !in_sysconf) std::this_thread::yield();
  in_child([] {
    hold_sysconf = false;
    build_a_map();
  });
  hold_sysconf = false;
  builder.join();
}
#endif

}  // namespace

int main() {
  char name[] = "/tmp/headrace-fork-XXXXXX";
  CHECK(::mkdtemp(name));
  const std::string folder = join_path(name, "map");
#if !defined(__SANITIZE_THREAD__)
  test_fork_beside_the_first_map();
#endif
  test_child_that_exits(folder);
  test_child_that_uses_the_map(folder);
  test_child_of_a_folder(folder);
  test_lock_is_the_parents(folder);
  test_fork_beside_threads(folder);
  test_stack_of_a_thread_that_a_child_lacks(folder);
  test_fork_in_a_batch_of_a_dynamic_map();
  test_fork_beside_writers_of_shards();
  test_fork_while_shards_are_replaced();
  std::filesystem::remove_all(name);
}
