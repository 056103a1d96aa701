// Randomised time-expanded matching: whenever a link is free, match it with chunks that its source
// holds and its destination lacks. Thousands of such constructions with random policies; the best
// is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "search/problem.hpp"
#include "search/replay.hpp"

namespace headrace::search {

struct Settings {
  std::uint64_t seed = 0;
  std::int64_t restarts = 1;
  double batch_share = 0;  // 0: every chunk by itself; else see Policy::share_left
  double limit_s = 60;
  double target_us = 0;    // stop when this is reached
  bool backwards = false;  // judge what is found turned round: as combining, over links reversed
};

struct Outcome {
  Messages messages;  // in the order of their start; backwards, link l goes from its dst to its src
  Times times;
  std::int64_t restarts = 0;
  bool struck = false;       // the time limit ended the search
  bool interrupted = false;  // `poll` ended it
  std::vector<std::pair<std::int64_t, double>> history;
};

// Throws SearchError if no construction carries everything. `poll` is called often: true ends the
// search with what there is, which is no messages if nothing was found yet.
Outcome search(const Network& network, const Carriage& carriage, const Settings& settings,
               const std::function<bool()>& poll);

}  // namespace headrace::search
