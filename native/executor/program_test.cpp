#include "executor/program.hpp"

#include <stdexcept>

#include "check.hpp"

using namespace headrace;

namespace {

struct Columns {
  std::vector<std::uint8_t> direction{0, 1};
  std::vector<std::int32_t> peer{1, 1};
  std::vector<std::int32_t> channel{0, 2};
  std::vector<std::int32_t> lane{0, 1};
  std::vector<std::uint8_t> op{0, 2};
  std::vector<std::int32_t> slot{0, 0};
  std::vector<std::int32_t> source{-1, -1};
  std::vector<std::int32_t> count{1, 1};
  std::vector<std::int32_t> waiting{1};
  std::vector<std::int32_t> awaited{0};

  Program make() const {
    return Program(0, 2, 2, 0, 0, 2,
                   {direction, peer, channel, lane, op, slot, source, count, waiting, awaited});
  }
};

void streams_between_equal_ranges_only() {
  Columns columns;
  auto program = columns.make();
  CHECK(program.channels() == 3);
  CHECK(program.dependencies(program.steps()[0]).empty());
  CHECK(program.dependencies(program.steps()[1])[0].streaming);
  columns.count = {2, 1};
  CHECK(!columns.make().dependencies(columns.make().steps()[1])[0].streaming);
}

template <class Change>
void refuses(const char* what, const Change& change) {
  Columns columns;
  change(columns);
  auto text = thrown<std::invalid_argument>([&] { columns.make(); });
  CHECK(text.find(what) != std::string::npos);
}

}  // namespace

int main() {
  streams_between_equal_ranges_only();
  refuses("unknown direction", [](Columns& c) { c.direction[0] = 9; });
  refuses("bad peer", [](Columns& c) { c.peer[0] = 2; });
  refuses("bad peer", [](Columns& c) { c.peer[0] = 0; });
  refuses("bad channel", [](Columns& c) { c.channel[1] = -1; });
  refuses("bad lane", [](Columns& c) { c.lane[1] = 7; });
  refuses("not grouped", [](Columns& c) {
    c.lane = {1, 0};
    c.op = {2, 0};
  });
  refuses("does not belong", [](Columns& c) { c.op[0] = 1; });
  refuses("bad slot", [](Columns& c) { c.slot[1] = 2; });
  refuses("bad slot", [](Columns& c) { c.count[1] = 3; });
  refuses("bad count", [](Columns& c) { c.count[1] = 0; });
  refuses("bad dependency", [](Columns& c) { c.awaited[0] = 2; });
}
