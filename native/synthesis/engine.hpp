// Randomised time-expanded matching: whenever a link is free, it is matched with chunks that its
// source has and its destination lacks. Thousands of such constructions with random policies;
// returns the best.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "synthesis/problem.hpp"
#include "synthesis/replay.hpp"

namespace headrace::synthesis {

struct Settings {
  std::uint64_t seed = 0;
  std::int64_t restarts = 1;
  double batch_share = 0;  // 0: one chunk per message; else see Policy::share_left
  double limit_s = 60;
  double target_us = 0;    // stop at this time or less
  bool backwards = false;  // evaluate time-reversed: reductions over reversed links
};

struct Outcome {
  Messages messages;  // by start time; backwards, link l goes from its dst to its src
  Times times;
  std::int64_t restarts = 0;
  bool struck = false;       // by the time limit
  bool interrupted = false;  // by `poll`
  std::vector<std::pair<std::int64_t, double>> history;
};

// Throws SearchError if no construction delivers every chunk. `poll` is called regularly: true ends
// the search with the best so far, which has no messages if nothing was found yet.
Outcome search(const Network& network, const Deliveries& deliveries, const Settings& settings,
               const std::function<bool()>& poll);

}  // namespace headrace::synthesis
