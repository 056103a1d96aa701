// A data channel between two turns of its thread.
//
// Regression: a lane whose last step used up the budget of a turn exactly stays at the front until
// the next turn. A thread that looked for work meanwhile read the state of a step past the lane's
// end, which may be another lane's, or no memory of the program.
#include "executor/data_stream.hpp"

#include <cstring>

#include "check.hpp"
#include "executor/received.hpp"
#include "executor/testing.hpp"

using namespace headrace;
using namespace headrace::testing;

namespace {

constexpr std::size_t kBudget = 256 << 10;

void a_finished_lane_is_not_held_back() {
  // The step after that of the first lane is empty, and waits for the third lane.
  auto program = program_of(0, 3, 2, {{1, 0, 0, false}, {2, 0, 1, false, 1}, {2, 0, 1, false}});
  CHECK(program->lanes()[0].steps == 1 && program->steps()[1].dependencies == 1);
  std::vector<std::byte> data(kBudget);
  auto address = reinterpret_cast<std::uintptr_t>(data.data());
  auto collective = std::make_shared<Collective>(program);
  collective->bind({{address, kBudget, 1, 1}, {address, 0, 1, 1}}, DataType::kUInt8, Operator::kSum,
                   false);
  auto connection = std::make_unique<Received>();
  Header header{0, 0, std::uint32_t{collective->signature} << 16, kBudget};
  connection->incoming.resize(sizeof header + kBudget, std::byte{7});
  std::memcpy(connection->incoming.data(), &header, sizeof header);
  DataStream stream(std::move(connection), 1, 0);
  stream.add_receive(collective, 0);
  Unlock unlock(nullptr, [] {});
  CHECK(stream.progress(unlock) && collective->lane_finished(0));
  CHECK(data.back() == std::byte{7});
  CHECK(stream.busy());
  CHECK(stream.progress(unlock) && !stream.busy());
}

}  // namespace

int main() { a_finished_lane_is_not_held_back(); }
