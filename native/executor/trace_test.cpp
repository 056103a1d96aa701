// Traced collectives record the times of every step; others record none.
#include <numeric>

#include "check.hpp"
#include "executor/executor.hpp"
#include "executor/testing.hpp"

using namespace headrace;
using namespace headrace::testing;

namespace {

void steps_have_ordered_times(Via via) {
  constexpr int kRanks = 3;
  Group group(kRanks, {via});
  for (std::size_t size : {0, 1, 300'000}) {
    group.each([&](int rank, Executor& executor) {
      auto program = program_of(rank, kRanks, kRanks, ring_allreduce(kRanks));
      std::vector<std::int32_t> data(size, rank);
      auto call = call_on(data, program, DataType::kInt32);
      auto before = now_ns();
      auto found = executor.trace(call);
      for (auto value : data) CHECK(value == kRanks * (kRanks - 1) / 2);
      CHECK(before <= found.called_ns && found.called_ns <= found.ended_ns);
      CHECK(found.ended_ns <= now_ns());
      CHECK(found.times.size() == program->steps().size());
      CHECK(found.bytes.size() == program->steps().size());
      std::uint64_t bytes = 0;
      for (const auto& lane : program->lanes()) {
        auto earlier = found.called_ns;
        for (auto i = lane.first_step; i < lane.first_step + lane.steps; ++i) {
          const auto& [began_ns, passed_ns] = found.times[i];
          CHECK(found.called_ns <= began_ns && began_ns <= passed_ns);
          CHECK(earlier <= passed_ns && passed_ns <= found.ended_ns);
          earlier = passed_ns;
          if (lane.direction == Direction::kSend) bytes += found.bytes[i];
        }
      }
      // A ring allreduce sends all slots but one, twice.
      CHECK(bytes <= 2 * size * sizeof(std::int32_t));
      CHECK(bytes >= 2 * (size * 2 / 3) * sizeof(std::int32_t));
      // Untraced, with the same program: the trace has no effect on later calls.
      executor.run(call);
    });
  }
}

void nothing_is_kept_unless_asked_for() {
  Collective collective(program_of(0, 2, 2, ring_allreduce(2)));
  std::vector<std::int32_t> data(10);
  std::vector<Segment> segments{{reinterpret_cast<std::uintptr_t>(data.data()), 10, 1, 2}};
  auto go = [&] {
    collective.attempt(collective.current(0));
    collective.pass(0);
  };
  auto bind = [&] { collective.bind(segments, DataType::kInt32, Operator::kSum, false); };
  bind();
  go();
  CHECK(collective.times.empty());
  bind();
  collective.trace();
  go();
  CHECK(collective.times.size() == collective.program->steps().size());
  CHECK(collective.times[0].passed_ns >= collective.times[0].began_ns);
  CHECK(collective.times[0].began_ns > 0);
  CHECK(collective.times[1].passed_ns == 0);
  bind();
  CHECK(collective.times.empty());
}

void failures_are_told_as_by_run() {
  Group group(2);
  group[1].abort("enough");
  std::vector<std::int32_t> data(10);
  auto program = program_of(0, 2, 2, ring_allreduce(2));
  auto text =
      thrown<CommunicationError>([&] { group[0].trace(call_on(data, program, DataType::kInt32)); });
  CHECK(text.find("enough") != std::string::npos);
}

}  // namespace

int main() {
  for (auto via : {Via::kTcp, Via::kMemory, Via::kBoth}) steps_have_ordered_times(via);
  nothing_is_kept_unless_asked_for();
  failures_are_told_as_by_run();
}
