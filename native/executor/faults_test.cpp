// Faults: every rank gets an error, in bounded time, that names the rank at fault.
#include <dirent.h>

#include <algorithm>
#include <atomic>

#include "check.hpp"
#include "executor/executor.hpp"
#include "executor/testing.hpp"
#include "process_testing.hpp"

using namespace headrace;
using namespace headrace::testing;

namespace {

int open_descriptors() {
  int count = 0;
  auto* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// One rank never joins a collective: the others time out together.
void deadline_names_the_rank_that_is_waited_for(Via via) {
  Group group(3, {via});
  group.each([&](int rank, Executor& executor) {
    if (rank == 2) return;
    std::vector<float> data(100'000);
    auto program = program_of(rank, 3, 3, ring_allreduce(3));
    auto text = thrown<CommunicationError>(
        [&] { executor.run(call_on(data, program, DataType::kFloat32, 0.3)); });
    CHECK(mentions(text, "timed out") && mentions(text, "collective 0"));
    // The error is sticky.
    CHECK(thrown<CommunicationError>(
              [&] { executor.run(call_on(data, program, DataType::kFloat32)); }) == text);
  });
}

// Regression: a call whose deadline passed at one rank succeeded at a rank that called later, as
// all its data had been sent before the abort: the connections of a rank without a call were not
// read, and calls were completed before the abort was handled.
void a_late_rank_fails_too(Via via) {
  using Act = std::function<void(Executor&, int rank, double deadline_s)>;
  std::vector<char> large(32 << 20);
  auto at = reinterpret_cast<std::uintptr_t>(large.data());
  Act collective = [](Executor& executor, int rank, double deadline_s) {
    std::vector<float> data(4);
    auto program = program_of(rank, 2, 2, ring_allreduce(2));
    executor.run(call_on(data, program, DataType::kFloat32, deadline_s));
  };
  Act message = [&](Executor& executor, int rank, double deadline_s) {
    executor.wait(rank == 0 ? executor.send(at, large.size(), 1, 7, deadline_s, false)
                            : executor.receive(at, large.size(), 0, 7, deadline_s, false));
  };
  for (int early : {0, 1}) {
    for (const auto& act : {collective, message}) {
      Group group(2, {via});
      auto text = thrown<CommunicationError>([&] { act(group[early], early, 0.2); });
      CHECK(mentions(text, rank_text(early) + " timed out"));
      CHECK(thrown<CommunicationError>([&] { act(group[1 - early], 1 - early, 20); }) == text);
      CHECK(thrown<CommunicationError>([&] { collective(group[early], early, 20); }) == text);
    }
  }
}

// At a deadline all ranks name the processes that do not run, not only ranks that wait for them:
// here rank 1 waits for rank 0, which waits for rank 2, which has only connections.
void a_stopped_rank_is_named_by_all(Via via) {
  auto links = links_of(3, 1, via);
  std::vector<std::thread> ranks;
  for (int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      Executor::Options options;
      options.rank = rank;
      options.ranks = 3;
      Executor executor(options);
      executor.connect(std::move(links[static_cast<std::size_t>(rank)]));
      std::vector<float> data(1000);
      auto program = program_of(rank, 3, 1, {{2, 0, 0, false}, {0, 1, 0, false}});
      auto call = call_on(data, program, DataType::kFloat32, rank == 1 ? 2.0 : 20.0);
      auto text = thrown<CommunicationError>([&] { executor.run(call); });
      CHECK(mentions(text, "rank 1 timed out") && mentions(text, "from rank 0"));
      CHECK(mentions(text, "rank 2 has not answered for "));
      CHECK(mentions(text, "to be stopped"));
    });
  }
  for (auto& rank : ranks) rank.join();
}

// Regression: a signal handler that destroys the group, run while a call waits on its thread,
// waited for the end of that wait.
void a_waiting_thread_can_close_the_group(Via via) {
  auto links = links_of(2, 1, via);
  std::vector<std::unique_ptr<Executor>> executors;
  for (int rank : {0, 1}) {
    Executor::Options options;
    options.rank = rank;
    options.ranks = 2;
    options.threads = threads_wanted();
    options.interrupted = [&executors, connecting = &links] {
      if (connecting->empty()) executors[0]->close();
    };
    executors.push_back(std::make_unique<Executor>(options));
  }
  std::thread other([&] { executors[1]->connect(std::move(links[1])); });
  executors[0]->connect(std::move(links[0]));
  other.join();
  links.clear();
  std::vector<float> data(100'000);
  auto program = program_of(0, 2, 2, ring_allreduce(2));
  auto text = thrown<CommunicationError>(
      [&] { executors[0]->run(call_on(data, program, DataType::kFloat32)); });
  CHECK(mentions(text, "this group was closed before collective 0"));
}

// Regression: an executor whose thread was refused said "Resource temporarily unavailable", and its
// peers waited for it.
void a_refused_thread_is_named() {
  auto links = links_of(2, 1, Via::kTcp);
  std::vector<std::unique_ptr<Executor>> executors;
  for (int rank : {0, 1}) {
    Executor::Options options;
    options.rank = rank;
    options.ranks = 2;
    executors.push_back(std::make_unique<Executor>(options));
  }
  {
    const RefusedThreads refused;
    auto text = thrown<CommunicationError>([&] { executors[0]->connect(std::move(links[0])); });
    CHECK(mentions(text, "rank 0 is not connected: the system refuses a thread"));
  }
  executors[1]->connect(std::move(links[1]));
  std::vector<float> data(1000);
  auto program = program_of(1, 2, 2, ring_allreduce(2));
  auto text = thrown<CommunicationError>(
      [&] { executors[1]->run(call_on(data, program, DataType::kFloat32)); });
  CHECK(mentions(text, "rank 0 died"));
}

void leaving_early_is_named(Via via) {
  Group group(3, {via});
  group.each([&](int rank, Executor& executor) {
    if (rank == 1) return executor.close();
    std::vector<float> data(100'000);
    auto program = program_of(rank, 3, 3, ring_allreduce(3));
    auto text = thrown<CommunicationError>(
        [&] { executor.run(call_on(data, program, DataType::kFloat32)); });
    CHECK(mentions(text, "rank 1 left the group"));
  });
}

// Regression: a receive from any rank waited for its deadline when no rank was left that could send
// to it. What was sent before they left counts.
void a_receive_from_any_rank_ends_with_the_last_of_them(Via via) {
  Group group(3, {via});
  group.each([&](int rank, Executor& executor) {
    std::vector<char> data(100'000, static_cast<char>(rank));
    auto at = reinterpret_cast<std::uintptr_t>(data.data());
    if (rank > 0) {
      executor.wait(executor.send(at, data.size(), 0, 7, kDeadlineS, false));
      return executor.close();
    }
    int sum = 0;
    for (int message = 0; message < 2; ++message) {
      executor.wait(executor.receive(at, data.size(), -1, 7, kDeadlineS, false));
      sum += data.back();
    }
    CHECK(sum == 3);
    auto text = thrown<CommunicationError>(
        [&] { executor.wait(executor.receive(at, data.size(), -1, 7, kDeadlineS, false)); });
    CHECK(mentions(text, "all other ranks left the group before receive from any rank (tag 7"));
  });
}

// Regression: a rank sent the rest of a collective and left while another thread of its peer had
// released the lock to receive: nothing had come yet, the end was known, and the peer took the data
// that it had not read for lost.
void what_was_sent_before_leaving_counts() {
  constexpr std::size_t kRingBytes = 64 << 10;
  constexpr std::size_t kElements = (kRingBytes + (40 << 10)) / sizeof(float);
  std::atomic<bool> ring_full = false;
  std::atomic<bool> nothing_came = false;
  std::atomic<bool> left = false;
  auto links = links_of(2, 1, Via::kMemory, kRingBytes);
  auto program = [](int rank) { return program_of(rank, 2, 1, {{1, 0, 0, false}}); };
  std::thread sender([&] {
    Executor::Options options;
    options.rank = 1;
    options.ranks = 2;
    options.interrupted = [&] {  // the sender's only driver waits here
      ring_full = true;
      nothing_came.wait(false);
    };
    Executor executor(options);
    executor.connect(std::move(links[1]));
    std::vector<float> data(kElements, 3);
    executor.run(call_on(data, program(1), DataType::kFloat32));
    executor.close();
    left = true;
    left.notify_all();
  });
  Executor::Options options;
  options.ranks = options.threads = 2;
  options.faults.received = [&, empty = 0](std::size_t, std::size_t moved) mutable {
    empty = moved > 0 ? 0 : empty + 1;
    // The first one that is empty is of a turn in which the ring was drained.
    if (empty < 2 || nothing_came.exchange(true)) return;
    nothing_came.notify_all();
    left.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the io thread notices
  };
  Executor executor(options);
  executor.connect(std::move(links[0]));
  while (!ring_full) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<float> data(kElements);
  executor.run(call_on(data, program(0), DataType::kFloat32));
  for (float value : data) CHECK(value == 3);
  sender.join();
}

// Regression: a rank sent a block and left while its peer, which had read the block's header,
// waited for another rank before the block had a place. The peer took the bytes that had come since
// for lost.
void what_has_no_place_yet_counts() {
  constexpr std::size_t kConnections = data_channels(1) + 2;
  constexpr std::size_t kNormalData = 3;  // after control, messages and urgent data
  const std::vector<Transfer> transfers{{1, 0, 0, false}, {2, 0, 0, false}};
  auto links = links_of(3, 1, Via::kBoth);  // ranks 0 and 2 share memory
  auto link = std::ranges::find_if(links[2], [](const Link& its) { return bool(its.memory); });
  const Fd memory(::dup(link->memory.get()));
  auto sender = shm::connections_of(std::move(link->fd), link->memory, kConnections, false);
  auto bytes = (shm::RingMemory::size_of(memory) - shm::control_bytes()) / (kConnections - 1);
  shm::RingMemory rings(memory, shm::control_bytes() + (kNormalData - 1) * bytes, bytes);
  auto send = [&sender](std::size_t connection, void* from, std::size_t size) {
    const iovec part{from, size};
    CHECK(sender[connection]->send(&part, 1, 0) == size);
  };

  std::vector<float> block(100, 2);
  Header header{0, 0, Signature{9} << 16, static_cast<std::uint32_t>(4 * block.size())};
  Header goodbye{0, 0, kGoodbyeLane, 0};
  std::atomic<bool> left = false;
  Executor::Options options;
  options.ranks = 3;
  options.interrupted = [&] {  // rank 0's only driver waits here
    if (sender.empty()) {
      left = true;
      left.notify_all();
    } else if (rings.state(1).head.load() == sizeof header) {
      send(kNormalData, block.data(), header.length);
      send(0, &goodbye, sizeof goodbye);
      sender.clear();
    }
  };
  Executor receiver(options);
  receiver.connect(std::move(links[0]));
  send(kNormalData, &header, sizeof header);
  std::thread late([&] {
    Executor::Options its;
    its.rank = 1;
    its.ranks = 3;
    Executor executor(its);
    executor.connect(std::move(links[1]));
    left.wait(false);
    std::vector<float> data(block.size(), 1);
    executor.run(call_on(data, program_of(1, 3, 1, transfers), DataType::kFloat32));
  });
  std::vector<float> data(block.size());
  receiver.run(call_on(data, program_of(0, 3, 1, transfers), DataType::kFloat32));
  CHECK(data == block);
  late.join();
}

void disagreeing_sizes_are_named(Via via) {
  Group group(2, {via});
  std::atomic<int> told{0};
  group.each([&](int rank, Executor& executor) {
    std::vector<float> data(rank == 0 ? 1000 : 2000);
    auto program = program_of(rank, 2, 2, ring_allreduce(2));
    auto text = thrown<CommunicationError>(
        [&] { executor.run(call_on(data, program, DataType::kFloat32)); });
    told += mentions(text, "was expected") ? 1 : 0;
  });
  CHECK(told == 2);
}

// Equal sizes, but different operations.
void disagreeing_calls_are_named(Via via) {
  for (auto [type, op, text_of_0] :
       {std::tuple{DataType::kFloat32, Operator::kMax, "of float32 by max"},
        std::tuple{DataType::kInt32, Operator::kSum, "of int32 by sum"}}) {
    Group group(2, {via});
    std::atomic<int> told{0};
    group.each([&, type = type, op = op, text_of_0 = text_of_0](int rank, Executor& executor) {
      std::vector<float> data(1000);
      auto call = call_on(data, program_of(rank, 2, 2, ring_allreduce(2)), DataType::kFloat32);
      if (rank == 0) {
        call.type = type;
        call.op = op;
      }
      auto text = thrown<CommunicationError>([&] { executor.run(call); });
      told += mentions(text, text_of_0) && mentions(text, "of float32 by sum") ? 1 : 0;
    });
    CHECK(told == 2);
  }
}

// Rank 2 receives from rank 0 by rank 0's plan, not by its own: reported long before the deadline.
void unexpected_steps_are_named(Via via) {
  Group group(3, {via});
  std::atomic<int> told{0};
  auto begin = Clock::now();
  group.each([&](int rank, Executor& executor) {
    std::vector<float> data(1000);
    std::vector<Transfer> transfers{{0, 1, 0, false}, {1, 2, 0, false}};
    if (rank == 0) transfers = {{0, 2, 0, false}, {2, 0, 0, true}};
    auto call = call_on(data, program_of(rank, 3, 1, transfers), DataType::kFloat32);
    auto text = thrown<CommunicationError>([&] { executor.run(call); });
    told += mentions(text, "rank 0 sent collective 0") && mentions(text, "nothing was expected");
  });
  CHECK(told == 3 && Clock::now() - begin < std::chrono::seconds(60));
}

// One rank changes plans a call earlier than the other: an error, whichever bytes are sent.
void different_plans_are_named(Via via) {
  Group group(2, {via});
  std::atomic<int> told{0};
  group.each([&](int rank, Executor& executor) {
    std::vector<float> data(1000);
    auto call = call_on(data, program_of(rank, 2, 2, ring_allreduce(2)), DataType::kFloat32);
    executor.run(call);
    call.epoch = rank == 0 ? 0 : 7;
    auto text = thrown<CommunicationError>([&] { executor.run(call); });
    told += mentions(text, "did not change plans") && mentions(text, "collective 1") &&
                    mentions(text, "plan 7")
                ? 1
                : 0;
  });
  CHECK(told == 2);
}

// A message is half-way when a collective of the same group times out: both end in the same error,
// and the message's memory is not touched afterwards.
void failing_amid_a_message_is_survived() {
  Group group(2);
  group[0].set_pacing(1, 20'000'000);
  group.each([&](int rank, Executor& executor) {
    std::vector<char> message(32 << 20);
    auto address = reinterpret_cast<std::uintptr_t>(message.data());
    if (rank == 0) {
      // The send itself throws if the group has failed by then.
      thrown<CommunicationError>(
          [&] { executor.wait(executor.send(address, message.size(), 1, 7, kDeadlineS, false)); });
      return;
    }
    auto handle = executor.receive(address, message.size(), 0, 7, kDeadlineS, false);
    std::vector<float> data(1000);
    auto program = program_of(rank, 2, 2, ring_allreduce(2));
    auto text = thrown<CommunicationError>(
        [&] { executor.run(call_on(data, program, DataType::kFloat32, 0.3)); });
    CHECK(mentions(text, "timed out"));
    CHECK(thrown<CommunicationError>([&] { executor.wait(handle); }) == text);
  });
}

// The n-th send or receive of rank 0 fails, for every n in turn: rank 0 gets an error, the others
// get one or had all their data, and nothing leaks.
void every_broken_call_is_survived(Via via) {
  auto before = open_descriptors();
  break_one_call_after_the_other([&](const faulty::Faults& faults) {
    std::atomic<bool> failed_at_0{false};
    Group group(3, {.via = via, .faults_of_rank_0 = faults});
    group.each([&](int rank, Executor& executor) {
      std::vector<float> data(100'000, 1.0f);
      auto program = program_of(rank, 3, 3, ring_allreduce(3));
      try {
        executor.run(call_on(data, program, DataType::kFloat32));
        for (float value : data) CHECK(value == 3.0f);
      } catch (const CommunicationError& error) {
        CHECK(mentions(error.what(), "rank"));
        if (rank == 0) failed_at_0 = true;
      }
    });
    return failed_at_0.load();
  });
  CHECK(open_descriptors() == before);
}

// Every call of rank 0 moves at most three bytes: no element and no header is contiguous.
void few_bytes_at_a_time_are_enough(Via via) {
  Group group(3, {.via = via, .faults_of_rank_0 = {.most_bytes = 3}});
  group.each([&](int rank, Executor& executor) {
    std::vector<double> data(5'000, rank + 0.5);
    auto program = program_of(rank, 3, 3, ring_allreduce(3));
    executor.run(call_on(data, program, DataType::kFloat64));
    for (double value : data) CHECK(value == 4.5);
  });
}

}  // namespace

int main() {
  what_was_sent_before_leaving_counts();
  what_has_no_place_yet_counts();
  a_refused_thread_is_named();
  for (auto via : every_via()) {
    deadline_names_the_rank_that_is_waited_for(via);
    a_late_rank_fails_too(via);
    if (via != Via::kTls) a_stopped_rank_is_named_by_all(via);  // to connect takes both ends
    a_waiting_thread_can_close_the_group(via);
    leaving_early_is_named(via);
    a_receive_from_any_rank_ends_with_the_last_of_them(via);
    disagreeing_sizes_are_named(via);
    disagreeing_calls_are_named(via);
    unexpected_steps_are_named(via);
    different_plans_are_named(via);
    every_broken_call_is_survived(via);
    few_bytes_at_a_time_are_enough(via);
  }
  failing_amid_a_message_is_survived();
}
