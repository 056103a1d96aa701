// Statistics of connections, during work and after close.
#include <atomic>
#include <numeric>

#include "check.hpp"
#include "executor/executor.hpp"
#include "executor/testing.hpp"

using namespace headrace;
using namespace headrace::testing;

namespace {

std::uint64_t total(const std::vector<ConnectionStatistics>& rows, int peer,
                    std::uint64_t ConnectionStatistics::* field) {
  std::uint64_t sum = 0;
  for (const auto& row : rows) sum += row.peer == peer ? row.*field : 0;
  return sum;
}

void every_byte_is_counted_once() {
  constexpr int kRanks = 3;
  Group group(kRanks, {.channels = 2});
  std::vector<float> messages(kRanks, 1.0f);
  group.each([&](int rank, Executor& executor) {
    std::vector<float> data(200'000, 1.0f);
    auto program = program_of(rank, kRanks, kRanks, ring_allreduce(kRanks));
    for (int i = 0; i < 5; ++i) executor.run(call_on(data, program, DataType::kFloat32));
    CHECK(executor.submitted() == 5 && executor.finished() == 5);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    auto rows = group[rank].statistics();
    auto counters = group[rank].counters();
    CHECK(rows.size() == static_cast<std::size_t>((kRanks - 1) * (data_channels(2) + 2)));
    for (int peer = 0; peer < kRanks; ++peer) {
      const auto& known = counters.peers[static_cast<std::size_t>(peer)];
      CHECK(total(rows, peer, &ConnectionStatistics::sent_bytes) == known.sent_bytes);
      CHECK(total(rows, peer, &ConnectionStatistics::received_bytes) == known.received_bytes);
    }
    int next = (rank + 1) % kRanks;
    for (const auto& row : rows) {
      CHECK(row.tcp.rtt_us > 0 && row.tcp.retransmits < 1000);
      bool used = row.peer == next && row.channel == 2;  // normal priority, channel 0
      // The control channel carries heartbeats if a rank waits for long, on a busy machine.
      CHECK((row.sent_bytes > 0) == used || row.channel == kControlChannel);
      CHECK(row.tcp.acked_bytes <= row.sent_bytes);
      if (used) CHECK(row.tcp.acked_bytes > 0 && row.tcp.delivery_rate > 0);
    }
  }
}

// Statistics are read by other threads while data flows, connections break and groups close.
void may_be_asked_at_any_time() {
  constexpr int kRanks = 2;
  for (int round = 0; round < 20; ++round) {
    Group group(kRanks, {.via = round % 4 < 2 ? Via::kTcp : Via::kMemory,
                         .faults_of_rank_0 = {.calls_left = round % 2 == 0 ? 0 : 4 + round}});
    std::atomic<bool> stop{false};
    std::vector<std::thread> watchers;
    for (int rank = 0; rank < kRanks; ++rank) {
      watchers.emplace_back([&, rank] {
        std::uint64_t before = 0;
        while (!stop) {
          auto rows = group[rank].statistics();
          auto sent = total(rows, 1 - rank, &ConnectionStatistics::sent_bytes);
          CHECK(rows.empty() || sent >= before);
          before = sent;
        }
        CHECK(group[rank].statistics().empty());
      });
    }
    group.each([&](int rank, Executor& executor) {
      std::vector<float> data(100'000, 1.0f);
      auto program = program_of(rank, kRanks, kRanks, ring_allreduce(kRanks));
      try {
        for (int i = 0; i < 10; ++i) executor.run(call_on(data, program, DataType::kFloat32, 5));
      } catch (const CommunicationError&) {
        CHECK(round % 2 == 1);
      }
      executor.close();
      CHECK(executor.submitted() == executor.finished());
    });
    stop = true;
    for (auto& watcher : watchers) watcher.join();
  }
}

}  // namespace

int main() {
  every_byte_is_counted_once();
  may_be_asked_at_any_time();
}
