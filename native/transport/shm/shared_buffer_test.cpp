// Zero-copy connections against a plain queue of bytes, under random sizes; and impossible
// descriptors.
#include "transport/shm/shared_buffer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "executor/testing.hpp"
#include "process.hpp"
#include "process_testing.hpp"
#include "transport/shm/connection.hpp"

using namespace headrace;
using namespace headrace::shm;
using namespace headrace::testing;

// A child of a fork joins none of its parent's threads, which ThreadSanitizer reports unless told.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }

namespace {

constexpr std::size_t kRingBytes = 64 << 10;
constexpr std::size_t kRegionBytes = 1 << 20;

struct Pair {
  Pair() {
    auto memory = memory_of(kRingBytes, 1);
    auto [mine, its] = unix_pair();
    sender = std::move(connections_of(std::move(mine), memory, 2, true)[1]);
    receiver = std::move(connections_of(std::move(its), memory, 2, false)[1]);
  }
  std::unique_ptr<headrace::Connection> sender;
  std::unique_ptr<headrace::Connection> receiver;
};

// Memory that is released at the end of the test.
struct Allocated {
  explicit Allocated(std::size_t size) : bytes(allocate(size), size) {}
  ~Allocated() { release(bytes.data()); }
  std::span<std::byte> bytes;
};

void shared_bytes_arrive_in_order() {
  std::mt19937 random(11);
  Pair pair;
  Allocated region(kRegionBytes);
  for (auto& byte : region.bytes) byte = static_cast<std::byte>(random());
  struct Part {
    std::size_t begin;
    std::size_t bytes;
    std::size_t sent = 0;
  };
  std::deque<Part> queue;     // not reported as sent
  std::deque<std::byte> due;  // not received
  std::vector<std::byte> into(kRegionBytes);
  std::size_t finished = 0;
  while (finished < 3000) {
    while (queue.size() < 4) {
      auto bytes = 1 + random() % (random() % 2 == 0 ? 64 : 200'000);
      auto begin = random() % (kRegionBytes - bytes);
      queue.push_back({begin, bytes});
      due.insert(due.end(), region.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                 region.bytes.begin() + static_cast<std::ptrdiff_t>(begin + bytes));
    }
    iovec parts[4];
    for (std::size_t i = 0; i < 4; ++i) {
      parts[i] = {region.bytes.data() + queue[i].begin + queue[i].sent,
                  queue[i].bytes - queue[i].sent};
    }
    // As streams do: shares only parts of which nothing was sent, and offers the same ones again.
    auto sent = pair.sender->send(parts, 4, queue[0].sent == 0 ? 0b1111 : 0b1110);
    while (sent > 0) {
      auto now = std::min(sent, queue[0].bytes - queue[0].sent);
      queue[0].sent += now;
      sent -= now;
      if (queue[0].sent < queue[0].bytes) continue;
      queue.pop_front();
      ++finished;
    }
    std::span<const std::byte> came;
    std::size_t size = random() % 100'000;
    bool peeks = random() % 2 == 0;
    if (peeks) {
      came = pair.receiver->peek(1, kRegionBytes);
      came = came.first(std::min(size, came.size()));
    } else {
      Hints hints{.past_caches = random() % 2 == 0};
      came = {into.data(), pair.receiver->receive(into.data(), size, hints)};
    }
    CHECK(came.size() <= due.size() && std::equal(came.begin(), came.end(), due.begin()));
    due.erase(due.begin(), due.begin() + static_cast<std::ptrdiff_t>(came.size()));
    if (peeks) CHECK(pair.receiver->use(came.size()));
  }
}

void waits_until_a_buffer_was_consumed() {
  Pair pair;
  Allocated region(kRegionBytes);
  iovec part{region.bytes.data(), 100'000};
  CHECK(pair.sender->send(&part, 1, 1) == 0 && pair.sender->send(&part, 1, 1) == 0);
  pair.sender->announce_sleep(true);
  CHECK(!pair.sender->changed());
  std::vector<std::byte> into(100'000);
  CHECK(pair.receiver->receive(into.data(), 99'999, {}) == 99'999);
  CHECK(pair.sender->send(&part, 1, 1) == 0);
  CHECK(pair.receiver->receive(into.data(), 1, {}) == 1);
  CHECK(pair.sender->changed());
  CHECK(pair.sender->send(&part, 1, 1) == 100'000);
}

// An owner that revokes may overwrite its memory at once.
void what_was_revoked_is_not_used() {
  for (bool peeks : {false, true}) {
    Pair pair;
    Allocated region(kRegionBytes);
    iovec part{region.bytes.data(), 100'000};
    CHECK(pair.sender->send(&part, 1, 1) == 0);
    CHECK(pair.receiver->peek(1, 1).size() == 100'000);
    pair.sender->close();
    std::vector<std::byte> into(100'000);
    if (peeks) {
      CHECK(!pair.receiver->use(10));
    } else {
      CHECK(pair.receiver->receive(into.data(), into.size(), {}) == 0);
    }
    CHECK(pair.receiver->closed_at());
  }
}

// A data loader's worker that merely ended revoked its parent's pending blocks, so that the
// parent's peer lost its connection.
void a_child_revokes_nothing() {
  Pair pair;
  Allocated region(kRegionBytes);
  region.bytes[0] = std::byte{7};
  iovec part{region.bytes.data(), region.bytes.size()};
  (void)pair.sender->send(&part, 1, 1);
  in_child([&] {
    pair.sender->abandon();
    pair.sender.reset();
  });
  std::byte first{};
  CHECK(pair.receiver->receive(&first, 1, {}) == 1);
  CHECK(first == std::byte{7});
}

// The first thread that needed the lock of the regions made it, and waited for the end of a fork
// that was under way: the child, which does not have the thread, waited for the lock for ever.
void a_fork_may_meet_the_first_use() {
  struct FirstUse final : ForkListener {
    void before_fork() noexcept override {
      user = std::thread([] { release(allocate(1)); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits by then, or has ended
    }
    std::thread user;
  } first_use;
  in_child([] { release(allocate(1)); });
  first_use.user.join();
}

// A child allocated the memory that its parent had released, and wrote into its parent's tensors.
void a_child_allocates_memory_of_its_own() {
  auto* begin = allocate(kRegionBytes);
  release(begin);
  Allocated used(2 * kRegionBytes);
  std::fill(begin, begin + kRegionBytes, std::byte{1});
  in_child([&] {
    Allocated anew(kRegionBytes);
    CHECK(anew.bytes.data() != begin);
    std::ranges::fill(anew.bytes, std::byte{2});
    release(used.bytes.data());
    Allocated again(2 * kRegionBytes);
    std::ranges::fill(again.bytes, std::byte{3});
  });
  CHECK(*begin == std::byte{1});
  CHECK(used.bytes[0] == std::byte{0});
}

// Another thread had the lock of the regions at the fork: in the child, freeing a tensor hung.
void a_child_can_release_whatever_other_threads_do() {
  Allocated inherited(kRegionBytes);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) (void)region_of(inherited.bytes.data(), 1), Allocated(1);
  });
  for (int fork = 0; fork < 200; ++fork) {
    in_child([&] { release(inherited.bytes.data()); });
  }
  stop = true;
  other.join();
}

void other_memory_is_copied() {
  Pair pair;
  std::vector<std::byte> own(40'000);
  Allocated region(kRegionBytes);
  iovec parts[2] = {{own.data(), own.size()}, {region.bytes.data(), 10'000}};
  CHECK(pair.sender->send(parts, 2, 0b11) == 50'000);  // the second is too small
  iovec past_the_end{region.bytes.data() + kRegionBytes - 40'000, 40'001};
  CHECK(region_of(region.bytes.data() + kRegionBytes - 40'000, 40'000));
  CHECK(!region_of(region.bytes.data() + kRegionBytes - 40'000, past_the_end.iov_len));
}

void memory_is_used_again() {
  auto* first = allocate(100'000);
  release(first);
  auto* again = allocate(90'000);
  CHECK(again == first);
  auto* other = allocate(90'000);
  CHECK(other != first);
  release(again);
  auto* large = allocate(400'000);
  CHECK(large != first);
  release(other);
  release(large);
  CHECK(!region_of(large, 1));
}

std::size_t mappings_of_regions() {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:headrace") != std::string::npos) ++found;
  }
  return found;
}

// Regression: released memory was never freed, neither here, where only a region of about the same
// size was reused, nor at any peer that had mapped it.
void memory_is_given_back() {
  Pair pair;
  std::vector<std::byte> into(40'000);
  auto before = mappings_of_regions();
  std::size_t most = 0;
  for (std::size_t i = 1; i <= 600; ++i) {
    Allocated region(40'000 * i);  // few fit an earlier size
    iovec part{region.bytes.data(), 40'000};
    std::fill_n(region.bytes.begin(), 40'000, static_cast<std::byte>(i));
    CHECK(pair.sender->send(&part, 1, 1) == 0);
    CHECK(pair.receiver->receive(into.data(), 40'000, {}) == 40'000);
    CHECK(into[39'999] == static_cast<std::byte>(i));
    CHECK(pair.sender->send(&part, 1, 1) == 40'000);  // it was consumed
    most = std::max(most, mappings_of_regions());
  }
  // Here and at the reader: kept regions and the one in use.
  CHECK(most <= before + 2 * (64 + 2));
}

// Released memory that a peer still has to read is not reused.
void what_is_to_be_read_is_kept() {
  Pair pair;
  auto* first = allocate(kRegionBytes);
  std::fill_n(first, 50'000, std::byte{7});
  iovec part{first, 50'000};
  CHECK(pair.sender->send(&part, 1, 1) == 0);
  release(first);
  Allocated other(kRegionBytes);
  CHECK(other.bytes.data() != first);
  std::fill(other.bytes.begin(), other.bytes.end(), std::byte{9});
  std::vector<std::byte> into(50'000);
  CHECK(pair.receiver->receive(into.data(), 50'000, {}) == 50'000);
  CHECK(std::ranges::all_of(into, [](std::byte each) { return each == std::byte{7}; }));
}

void numbers_are_used_again_once_the_reader_let_go() {
  BufferQueue state{};
  auto [socket, other] = unix_pair();
  Doorbell doorbell(std::move(socket));
  BufferOwner owner(state, doorbell, 0);
  BufferReader reader(state);
  auto post = [&](std::size_t bytes) {
    auto region = std::make_shared<const Region>(bytes);
    CHECK(owner.post(0, region, region->begin(), bytes));
    auto number = state.descriptors[(state.posted.load() - 1) % BufferQueue::kCapacity].region;
    reader.add_region(number, Fd(::dup(region->fd().get())));
    state.consumed.store(state.posted.load());
    CHECK(owner.reclaim() == 1);
    return number;
  };
  CHECK(post(50'000) == 0);
  CHECK(post(50'000) == 1);  // the end of the first is not published yet
  owner.drop_ended();
  CHECK(post(50'000) == 2);  // published, but the reader has not unmapped it
  reader.drop_ended();
  owner.drop_ended();
  CHECK(post(50'000) == 0);
  auto again = std::make_shared<const Region>(50'000);
  thrown<ProtocolError>([&] { reader.add_region(0, Fd(::dup(again->fd().get()))); });
}

// Two connections of one doorbell, with regions of the same number each, and a peer that is woken
// while descriptors come.
void every_connection_gets_its_own_regions() {
  auto [mine, its] = unix_pair();
  Doorbell from(std::move(mine));
  Doorbell to(std::move(its));
  for (std::size_t connection : {1, 2}) {
    Region region(kRegionBytes * connection);
    for (int ring = 0; ring < 100; ++ring) from.ring();
    CHECK(from.pass(connection, 7, region.fd()));
  }
  to.read();
  for (std::size_t connection : {1, 2}) {
    auto passed = to.take(connection);
    CHECK(passed.size() == 1 && passed[0].number == 7);
    CHECK(Region(std::move(passed[0].memory)).bytes() == kRegionBytes * connection);
    CHECK(to.take(connection).empty());
  }
  CHECK(to.take(0).empty() && to.take(9).empty() && !to.closed_at());
  from.abandon();
  to.read();
  CHECK(to.closed_at());
}

// Regression: the kernel dropped the descriptor of a region for which the reader's process had no
// number left, and the reader waited for it until the deadline of its call.
void a_region_that_the_reader_cannot_have_is_an_error() {
  Pair pair;
  Allocated region(kRegionBytes);
  iovec part{region.bytes.data(), 100'000};
  CHECK(pair.sender->send(&part, 1, 1) == 0);
  rlimit limit{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  auto none_left = limit;
  none_left.rlim_cur = static_cast<rlim_t>(Fd(::dup(0)).get());  // the lowest that is free
  CHECK(::setrlimit(RLIMIT_NOFILE, &none_left) == 0);
  auto text = thrown<ProtocolError>([&] { pair.receiver->peek(1, 1); });
  CHECK(text.find("ulimit -n") != std::string::npos);
  CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  thrown<ProtocolError>([&] { pair.receiver->peek(1, 1); });  // it is lost
}

void detects_impossible_descriptors() {
  BufferQueue state{};
  BufferReader reader(state);
  reader.add_region(0, Fd(::dup(Region(kRegionBytes).fd().get())));
  for (auto [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{1, kRegionBytes},
                               {kRegionBytes + 1, 1},
                               {~std::uint64_t{0}, 2}}) {
    BufferQueue broken{};
    BufferReader one(broken);
    one.add_region(0, Fd(::dup(Region(kRegionBytes).fd().get())));
    broken.descriptors[0] = {100, 0, offset, bytes};
    broken.posted = 1;
    CHECK(one.bytes_before_next(50, 70) == 20 && one.bytes_before_next(50, 120) == 50);
    thrown<ProtocolError>([&] { one.span(); });
    thrown<ProtocolError>([&] { one.bytes_before_next(101, 120); });
  }
  Doorbell none{Fd()};
  BufferOwner owner(state, none, 0);
  state.consumed = 1;
  thrown<ProtocolError>([&] { owner.reclaim(); });
  Fd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  thrown<ProtocolError>([&] { reader.add_region(1, std::move(unsealed)); });
  auto [socket, other] = unix_pair();
  thrown<ProtocolError>([&] { reader.add_region(1, std::move(socket)); });
}

// A descriptor that arrives before the bytes in front of its buffer does not overtake them.
void buffers_keep_their_position() {
  BufferQueue state{};
  BufferReader reader(state);
  auto region = std::make_shared<const Region>(kRegionBytes);
  reader.add_region(0, Fd(::dup(region->fd().get())));
  state.descriptors[0] = {16, 0, 0, 1000};
  state.posted = 1;
  CHECK(reader.bytes_before_next(0, 0) == 0 && !reader.is_next(0));
  CHECK(reader.bytes_before_next(0, 40) == 16 && !reader.is_next(0));
  CHECK(reader.bytes_before_next(16, 40) == 0 && reader.is_next(16));
  CHECK(reader.use(400) && reader.is_next(16));
  CHECK(reader.use(600) && !reader.is_next(16) && state.consumed == 1);
  CHECK(reader.bytes_before_next(16, 40) == 24);
}

// Every rank gathers all blocks, and keeps the sum of one, in memory that the others can map.
void collectives_are_right(int ranks) {
  constexpr std::size_t kBlock = 30'000;
  std::vector<Transfer> gather;
  std::vector<Transfer> scatter;
  for (int r = 0; r < ranks; ++r) {
    for (int k = 1; k < ranks; ++k) {
      gather.push_back({r, (r + k) % ranks, r, false});
      scatter.push_back({r, (r + k) % ranks, (r + k) % ranks, true});
    }
  }
  Group group(ranks, {Via::kMemory});
  group.each([&](int rank, Executor& executor) {
    auto count = kBlock * static_cast<std::size_t>(ranks);
    Allocated region(count * sizeof(float));
    std::span<float> data(reinterpret_cast<float*>(region.bytes.data()), count);
    auto block = [&](int r) { return data.subspan(kBlock * static_cast<std::size_t>(r), kBlock); };
    for (int round = 0; round < 20; ++round) {
      std::iota(data.begin(), data.end(), static_cast<float>(1000 * rank + round));
      executor.run(call_on(data, program_of(rank, ranks, ranks, gather), DataType::kFloat32));
      for (int r = 0; r < ranks; ++r) {
        auto first = static_cast<float>(1000 * r + round) + static_cast<float>(kBlock) * r;
        for (float value : block(r)) CHECK(value == first++);
      }
      std::fill(data.begin(), data.end(), static_cast<float>(rank + round));
      executor.run(call_on(data, program_of(rank, ranks, ranks, scatter), DataType::kFloat32));
      auto sum = static_cast<float>(ranks * round + ranks * (ranks - 1) / 2);
      CHECK(std::ranges::all_of(block(rank), [&](float value) { return value == sum; }));
    }
  });
}

// The n-th call of rank 0 fails, for every n in turn. A rank that gets an error overwrites its
// memory at once, whether or not others have read it: no rank ever gets a wrong result.
void breaks_without_wrong_results() {
  constexpr int kRanks = 3;
  constexpr std::size_t kBlock = 50'000;
  std::vector<Transfer> transfers;
  for (bool reduces : {true, false}) {
    for (int r = 0; r < kRanks; ++r) {
      for (int k = 1; k < kRanks; ++k) {
        int to = (r + k) % kRanks;
        transfers.push_back({r, to, reduces ? to : r, reduces});
      }
    }
  }
  break_one_call_after_the_other([&](const faulty::Faults& faults) {
    std::atomic<bool> failed_at_0{false};
    Group group(kRanks, {.via = Via::kMemory, .faults_of_rank_0 = faults});
    group.each([&](int rank, Executor& executor) {
      Allocated region(kRanks * kBlock * sizeof(float));
      std::span<float> data(reinterpret_cast<float*>(region.bytes.data()), kRanks * kBlock);
      auto program = program_of(rank, kRanks, kRanks, transfers);
      try {
        for (int round = 0; round < 3; ++round) {
          std::fill(data.begin(), data.end(), 1.0f + static_cast<float>(rank));
          executor.run(call_on(data, program, DataType::kFloat32));
          CHECK(std::ranges::all_of(data, [](float value) { return value == 6.0f; }));
        }
      } catch (const CommunicationError&) {
        std::fill(data.begin(), data.end(), -1.0f);
        if (rank == 0) failed_at_0 = true;
      }
    });
    return failed_at_0.load();
  });
}

}  // namespace

int main() {
  a_fork_may_meet_the_first_use();  // before all others
  shared_bytes_arrive_in_order();
  waits_until_a_buffer_was_consumed();
  what_was_revoked_is_not_used();
  a_child_revokes_nothing();
  a_child_allocates_memory_of_its_own();
  a_child_can_release_whatever_other_threads_do();
  other_memory_is_copied();
  memory_is_used_again();
  memory_is_given_back();
  what_is_to_be_read_is_kept();
  numbers_are_used_again_once_the_reader_let_go();
  every_connection_gets_its_own_regions();
  a_region_that_the_reader_cannot_have_is_an_error();
  detects_impossible_descriptors();
  buffers_keep_their_position();
  collectives_are_right(2);
  collectives_are_right(4);
  breaks_without_wrong_results();
}
