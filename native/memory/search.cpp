#include "memory/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numbers>
#include <tuple>

namespace headrace::memory {
namespace {

// Time by which a move counts that takes none.
constexpr double kLeastUs = 1e-3;
// Moves that are simulated in each round of `repair`, those that free most for their time; more
// until one helps.
constexpr int kTried = 12;
// Share of the rounds of `improve` that change implementations.
constexpr double kChangedShare = 0.3;
// Exchanges of implementations that are tried, those that save most; the least share of the time
// that one saves; share of the rounds of `improve` that begin with one.
constexpr int kExchanged = 6;
constexpr double kExchangedShare = 0.002, kExchangedRounds = 0.1;
// Blocks whose like all equal ones are made, the fastest; share of the rounds of `improve` that
// begin with one.
constexpr int kSpread = 3;
constexpr double kSpreadRounds = 0.05;
// Backward operators, next to each other, that one such round changes.
constexpr int kChanged[] = {1, 1, 2, 4, 8, 16};
// Noises of the repairs of `improve`; shares of the forward pass whose reruns it forgets, and with
// which probability each of them.
constexpr double kNoises[] = {0.0, 0.3, 1.0};
constexpr double kWidths[] = {0.05, 0.1, 0.2, 0.4};
constexpr double kForgotten[] = {0.5, 1.0, 1.0};
// With which probability a forgotten operator's implementation in the forward pass is the first.
constexpr double kFirstWay = 0.1;
// With which probability a slower draft is taken as the next to change, and the nearest best again.
constexpr double kSlowerTaken = 0.02, kBestTaken = 0.05;
// Rounds of `improve` without a faster draft after which it starts from the plain run again, with
// this noise: seldom enough that on the networks of the paper's Table 4.2 few climbs end early.
constexpr int kStale = 2000;
constexpr double kStartNoise = 1.0;
constexpr auto kPollEvery = std::chrono::milliseconds(5);

template <class T, std::size_t N>
T one_of(Random& random, const T (&values)[N]) {
  return values[random.below(static_cast<int>(N))];
}

// First step of a stage, or of the first one behind it.
int begin_of(const Trial& trial, int stage) {
  return static_cast<int>(std::lower_bound(trial.stage.begin(), trial.stage.end(), stage) -
                          trial.stage.begin());
}

int step_of(const Trial& trial, int stage, int op) {
  const auto ops = trial.op.begin();
  return static_cast<int>(
      std::lower_bound(ops + begin_of(trial, stage), ops + begin_of(trial, stage + 1), op) - ops);
}

// Whether an instance of a storage is live when a step is inserted before `step`.
bool is_there(const Trial& trial, int storage, int step) {
  for (auto at = trial.newest[storage]; at >= 0; at = trial.instances[at].before) {
    if (trial.instances[at].first < step && trial.instances[at].last >= step) return true;
  }
  return false;
}

}  // namespace

// A storage that is dropped and computed again in a stage, with the reruns that this takes.
struct Search::Split {
  int stage = 0;
  std::vector<Run> runs;
  double merit = 0;
};

Search::Search(Graph graph, std::int64_t budget, std::uint64_t seed,
               std::vector<std::vector<Block>> repeated)
    : graph_(std::move(graph)), budget_(budget), random_(seed, 0), repeated_(std::move(repeated)) {
  check(graph_);
  for (const auto& blocks : repeated_) {
    for (const auto& block : blocks) {
      const bool equal = block.forward.size() == blocks.front().forward.size() &&
                         block.backward.size() == blocks.front().backward.size();
      auto within = [&](const auto& ops, int least, int end) {
        return !ops.empty() &&
               std::all_of(ops.begin(), ops.end(), [&](int op) { return op >= least && op < end; });
      };
      if (!equal || !within(block.forward, 0, graph_.forward_count) ||
          !within(block.backward, graph_.forward_count, graph_.operators())) {
        throw GraphError("blocks are not equal parts of the graph");
      }
    }
  }
}

bool Search::simulate(Trial& trial) { return memory::simulate(graph_, budget_, trial); }

Trial Search::plain() {
  Trial trial;
  trial.draft.forward.assign(static_cast<std::size_t>(graph_.forward_count), 0);
  trial.draft.backward.assign(static_cast<std::size_t>(graph_.operators() - graph_.forward_count),
                              0);
  if (!simulate(trial)) throw GraphError("a plain run reads what is not there");
  return trial;
}

bool Search::stopped(const Stop& stop) {
  if (ended_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now - polled_ < kPollEvery) return false;
  polled_ = now;
  return ended_ = stop();
}

double Search::disturbance(double noise) {
  if (noise == 0) return 1;
  const double radius = std::sqrt(-2 * std::log(1 - static_cast<double>(random_.unit())));
  const double angle = 2 * std::numbers::pi * static_cast<double>(random_.unit());
  return std::exp(noise * radius * std::cos(angle));
}

bool Search::fits_and_is_faster(const Trial& tried, const Trial& trial) const {
  return tried.excess == 0 && tried.time_us < trial.time_us;
}

// Takes `scratch.draft` for the trial's if it needs no more memory above the budget, and no more
// time.
bool Search::try_into(Trial& trial, Trial& scratch) {
  if (!simulate(scratch) || scratch.excess > trial.excess || scratch.time_us > trial.time_us) {
    return false;
  }
  std::swap(trial, scratch);
  return true;
}

Trial Search::repair(Trial trial, double noise, const Stop& stop) {
  ended_ = false;
  Trial best, tried;
  std::vector<Draft> moves;
  while (trial.excess > 0 && !stopped(stop)) {
    double merit = 0;
    int count = 0;
    // Returns whether to go on.
    auto consider = [&](const Draft& draft) {
      if (merit > 0 && count >= kTried) return false;
      ++count;
      tried.draft = draft;
      if (!simulate(tried) || tried.excess >= trial.excess) return true;
      const auto gain = static_cast<double>(trial.excess - tried.excess);
      const double value =
          gain / std::max(tried.time_us - trial.time_us, kLeastUs) * disturbance(noise);
      if (value > merit) {
        std::swap(best, tried);
        merit = value;
      }
      return true;
    };
    moves.clear();
    other_ways(trial, moves);
    const auto across = spanning(trial);
    for (std::size_t i = 0; i < across.size() && i < kTried; ++i) {
      not_reading(trial, across[i], moves);
    }
    if (std::all_of(moves.begin(), moves.end(), consider)) {
      std::vector<Split> splits;
      for (const auto& each : across) {
        if (Split made; split(trial, each, made)) {
          made.merit *= disturbance(noise);
          splits.push_back(std::move(made));
        }
      }
      std::stable_sort(splits.begin(), splits.end(),
                       [](const Split& a, const Split& b) { return a.merit > b.merit; });
      for (const auto& each : splits) {
        auto draft = trial.draft;
        for (const auto& run : each.runs) draft.put(run);
        if (!consider(draft)) break;
      }
    }
    if (merit == 0) break;
    std::swap(trial, best);
  }
  return trial;
}

// Adds drafts in which the run at the highest step is by another implementation.
void Search::other_ways(const Trial& trial, std::vector<Draft>& moves) const {
  const int stage = trial.stage[trial.peak], op = trial.op[trial.peak];
  const int now = trial.draft.way(stage, op);
  for (int number = 0; number < graph_.ways(op); ++number) {
    if (number == now) continue;
    moves.push_back(trial.draft);
    moves.back().set_way(stage, op, number);
  }
}

// Returns storages that are live at the highest step only for later, the largest first.
std::vector<Search::Spanning> Search::spanning(const Trial& trial) const {
  std::vector<Spanning> found;
  std::vector<std::int32_t> reader(graph_.nbytes.size(), 0);  // 0: not wanted, -1: wanted
  int wanted = 0;
  for (const auto& instance : trial.instances) {
    if (instance.first >= trial.peak || instance.last <= trial.peak) continue;
    if (graph_.creator[instance.storage] < 0) continue;
    reader[instance.storage] = -1;
    found.push_back({instance.storage, 0});
    ++wanted;
  }
  for (int step = trial.peak; step < trial.steps() && wanted > 0; ++step) {
    const auto way = static_cast<std::size_t>(trial.way[step]);
    for (const auto storage : graph_.reads[way]) {
      if (reader[storage] >= 0) continue;
      reader[storage] = step > trial.peak ? step : 0;
      --wanted;
    }
  }
  for (auto& each : found) each.reader = reader[each.storage];
  std::erase_if(found, [](const Spanning& each) { return each.reader <= 0; });
  std::stable_sort(found.begin(), found.end(), [&](const Spanning& a, const Spanning& b) {
    return graph_.nbytes[a.storage] > graph_.nbytes[b.storage];
  });
  return found;
}

// Adds drafts in which the next reader of a storage does without it.
void Search::not_reading(const Trial& trial, const Spanning& each,
                         std::vector<Draft>& moves) const {
  const int stage = trial.stage[each.reader], op = trial.op[each.reader];
  for (int number = 0; number < graph_.ways(op); ++number) {
    const auto read = graph_.reads[static_cast<std::size_t>(graph_.first_way[op] + number)];
    if (std::find(read.begin(), read.end(), each.storage) != read.end()) continue;
    moves.push_back(trial.draft);
    moves.back().set_way(stage, op, number);
    for (const auto storage : read) make(trial, moves.back(), storage, each.reader);
  }
}

bool Search::creates(int way, int storage) const {
  const auto made = graph_.creates[static_cast<std::size_t>(way)];
  return std::find(made.begin(), made.end(), storage) != made.end();
}

// Lets the last run of a storage's creator before a step create it; returns the microseconds that
// it takes longer.
double Search::make(const Trial& trial, Draft& draft, int storage, int reader) const {
  const int creator = graph_.creator[storage];
  if (creator < 0) return 0;
  int step = reader - 1;
  while (trial.op[step] != creator) --step;
  const int first = graph_.first_way[creator], now = draft.way(trial.stage[step], creator);
  if (creates(first + now, storage)) return 0;
  for (int number = 0; number < graph_.ways(creator); ++number) {
    if (!creates(first + number, storage)) continue;
    draft.set_way(trial.stage[step], creator, number);
    return graph_.time_us[first + number] - graph_.time_us[first + now];
  }
  return 0;
}

// Returns the implementation by which an operator can run again to create a storage: `now` if it
// does, else the fastest that overwrites nothing; -1 if there is none.
int Search::creating(int op, int storage, const std::int32_t* now) const {
  if (!graph_.again[op]) return -1;
  const int first = graph_.first_way[op];
  if (now != nullptr && creates(first + *now, storage)) return *now;
  int best = -1;
  for (int number = 0; number < graph_.ways(op); ++number) {
    if (graph_.overwrites[first + number] >= 0 || !creates(first + number, storage)) continue;
    if (best < 0 || graph_.time_us[first + number] < graph_.time_us[first + best]) best = number;
  }
  return best;
}

// Finds the reruns that compute a storage again for its next reader; false if an operator that may
// not run again would have to.
bool Search::split(const Trial& trial, const Spanning& each, Split& made) const {
  made.stage = trial.stage[each.reader];
  if (made.stage == 0) return false;
  auto made_run = [&](int op) -> const Run* {
    const auto at = std::find_if(made.runs.begin(), made.runs.end(),
                                 [&](const Run& run) { return run.op == op; });
    return at == made.runs.end() ? nullptr : &*at;
  };
  double time_us = 0;
  std::vector<std::int32_t> pending{each.storage};
  while (!pending.empty()) {
    const auto storage = pending.back();
    pending.pop_back();
    const int op = graph_.creator[storage];
    const auto* present = trial.draft.find(made.stage, op);
    const auto* planned = made_run(op);
    const auto* known = present != nullptr ? present : planned;
    const int number = creating(op, storage, known != nullptr ? &known->way : nullptr);
    if (number < 0) return false;
    if (planned != nullptr || (present != nullptr && present->way == number)) continue;
    made.runs.push_back({made.stage, op, number});
    const int way = graph_.first_way[op] + number;
    time_us += graph_.time_us[way];
    const int step = step_of(trial, made.stage, op);
    for (const auto read : graph_.reads[static_cast<std::size_t>(way)]) {
      const int creator = graph_.creator[read];
      if (creator < 0 || !graph_.again[creator] || made_run(creator) != nullptr) continue;
      if (!is_there(trial, read, step)) pending.push_back(read);
    }
  }
  made.merit = static_cast<double>(graph_.nbytes[each.storage]) / std::max(time_us, kLeastUs);
  return true;
}

Trial Search::polish(Trial trial, const Stop& stop) {
  ended_ = false;
  drop_unread(trial);
  Trial scratch;
  auto time_of = [&](int op, int number) { return graph_.time_us[graph_.first_way[op] + number]; };
  auto runs = trial.draft.again;
  std::stable_sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) {
    return time_of(a.op, a.way) > time_of(b.op, b.way);
  });
  for (const auto& run : runs) {
    if (stopped(stop)) return trial;
    if (trial.draft.find(run.stage, run.op) == nullptr) continue;
    if (needed(trial, step_of(trial, run.stage, run.op))) continue;
    scratch.draft = trial.draft;
    scratch.draft.remove(run.stage, run.op);
    try_into(trial, scratch);
  }
  std::vector<std::tuple<double, int, int>> faster;
  for (int step = 0; step < trial.steps(); ++step) {
    const int op = trial.op[step], now = trial.way[step] - graph_.first_way[op];
    for (int number = 0; number < graph_.ways(op); ++number) {
      const double change_us = time_of(op, number) - time_of(op, now);
      if (change_us < 0) faster.emplace_back(change_us, step, number);
    }
  }
  std::sort(faster.begin(), faster.end());
  for (const auto& [change_us, step, number] : faster) {
    if (stopped(stop)) return trial;
    const int op = trial.op[step];
    if (too_large(trial, step, graph_.first_way[op] + number)) continue;
    scratch.draft = trial.draft;
    scratch.draft.set_way(trial.stage[step], op, number);
    try_into(trial, scratch);
  }
  drop_unread(trial);
  return trial;
}

// Returns the instance of a storage that a step reads.
const Instance& Search::read_at(const Trial& trial, int storage, int step) const {
  auto at = trial.newest[storage];
  while (trial.instances[at].first >= step) at = trial.instances[at].before;
  return trial.instances[at];
}

// Whether a storage is too much for the budget between the last step at which an instance of it is
// there and a later step, with some bytes freed.
bool Search::exceeds(const Trial& trial, const Instance& instance, int step,
                     std::int64_t freed) const {
  const auto most = budget_ + freed - graph_.nbytes[instance.storage];
  for (int at = instance.last + 1; at < step; ++at) {
    if (trial.bytes[at] > most) return true;
  }
  return false;
}

// Whether a draft that fits surely does not fit without a rerun: without a simulation, from what
// its readers would keep and the most that its own operands free.
bool Search::needed(const Trial& trial, int step) const {
  if (trial.excess > 0) return false;
  const auto way = static_cast<std::size_t>(trial.way[step]);
  std::int64_t freed = 0;
  for (const auto storage : graph_.reads[way]) {
    if (read_at(trial, storage, step).last == step) freed += graph_.nbytes[storage];
  }
  for (const auto storage : graph_.creates[way]) {
    auto at = trial.newest[storage];
    while (trial.instances[at].first != step) at = trial.instances[at].before;
    const auto& instance = trial.instances[at];
    if (instance.last == step) continue;
    if (instance.before < 0) return true;
    if (exceeds(trial, trial.instances[instance.before], step, freed)) return true;
  }
  return false;
}

// Whether a draft that fits surely does not fit with another implementation of a step.
bool Search::too_large(const Trial& trial, int step, int way) const {
  if (trial.excess > 0) return false;
  const auto now = static_cast<std::size_t>(trial.way[step]);
  const auto other = static_cast<std::size_t>(way);
  auto has = [](std::span<const std::int32_t> list, int storage) {
    return std::find(list.begin(), list.end(), storage) != list.end();
  };
  std::int64_t freed = 0;
  for (const auto storage : graph_.reads[now]) {
    if (has(graph_.reads[other], storage)) continue;
    if (read_at(trial, storage, step).last == step) freed += graph_.nbytes[storage];
  }
  auto run_bytes = [&](std::size_t each) {
    auto bytes = graph_.workspace_bytes[each];
    for (const auto storage : graph_.creates[each]) bytes += graph_.nbytes[storage];
    if (const auto over = graph_.overwrites[each]; over >= 0) bytes -= graph_.nbytes[over];
    return bytes;
  };
  if (trial.bytes[step] - freed - run_bytes(now) + run_bytes(other) > budget_) return true;
  for (const auto storage : graph_.reads[other]) {
    if (has(graph_.reads[now], storage) || trial.newest[storage] < 0) continue;
    auto at = trial.newest[storage];
    while (at >= 0 && trial.instances[at].first >= step) at = trial.instances[at].before;
    if (at < 0 || exceeds(trial, trial.instances[at], step, freed)) return true;
  }
  return false;
}

// Removes reruns of which nothing is read.
void Search::drop_unread(Trial& trial) {
  Trial scratch;
  std::vector<std::uint8_t> read;
  while (true) {
    read.assign(trial.op.size(), 0);
    for (const auto& instance : trial.instances) {
      if (instance.last > instance.first) read[instance.first] = 1;
    }
    scratch.draft = trial.draft;
    for (int step = graph_.forward_count; step < trial.steps(); ++step) {
      if (read[step] || trial.op[step] >= graph_.forward_count) continue;
      scratch.draft.remove(trial.stage[step], trial.op[step]);
    }
    if (scratch.draft.again.size() == trial.draft.again.size()) return;
    if (!simulate(scratch) || scratch.excess > trial.excess) return;
    std::swap(trial, scratch);
  }
}

Trial Search::improve(const Trial& trial, std::int64_t rounds, const Stop& stop,
                      const std::function<void(const Trial&)>& found) {
  Trial best = trial, near = trial, current = trial, tried;  // near: the best since the start
  ended_ = false;
  int stale = 0;
  for (std::int64_t round = 0; round < rounds && !stopped(stop); ++round) {
    if (++stale > kStale) {
      stale = 0;
      tried = polish(repair(plain(), kStartNoise, stop), stop);
      if (tried.excess == 0) near = current = tried;
    }
    tried.draft = changed(current);
    if (!simulate(tried)) continue;
    tried = repair(std::move(tried), one_of(random_, kNoises), stop);
    tried = polish(std::move(tried), stop);
    if (tried.excess > 0) continue;
    if (tried.time_us < best.time_us) {
      best = tried;
      found(best);
    }
    if (tried.time_us < near.time_us) {
      near = tried;
      stale = 0;
    }
    if (tried.time_us <= current.time_us || random_.unit() < kSlowerTaken) {
      std::swap(current, tried);
    } else if (random_.unit() < kBestTaken) {
      current = near;
    }
  }
  return best;
}

Trial Search::exchanged(Trial trial, const Stop& stop) {
  ended_ = false;
  for (const auto& draft : exchanges(trial)) {
    if (stopped(stop)) break;
    Trial tried;
    tried.draft = draft;
    if (!simulate(tried)) continue;
    tried = polish(repair(std::move(tried), 0, stop), stop);
    if (fits_and_is_faster(tried, trial)) std::swap(trial, tried);
  }
  return trial;
}

// Returns drafts that take less time and may not fit, the fastest first.
std::vector<Draft> Search::exchanges(const Trial& trial) const {
  std::vector<std::pair<double, Draft>> found;
  for (int step = graph_.forward_count; step < trial.steps(); ++step) {
    const int op = trial.op[step];
    if (op < graph_.forward_count) continue;
    const int first = graph_.first_way[op], now = trial.way[step] - first;
    for (int number = 0; number < graph_.ways(op); ++number) {
      double saved = graph_.time_us[first + now] - graph_.time_us[first + number];
      if (number == now || saved <= kExchangedShare * trial.time_us) continue;
      auto draft = trial.draft;
      draft.set_way(trial.stage[step], op, number);
      for (const auto read : graph_.reads[static_cast<std::size_t>(first + number)]) {
        saved -= make(trial, draft, read, step);
      }
      if (saved > kExchangedShare * trial.time_us) found.emplace_back(saved, std::move(draft));
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Draft> best;
  for (std::size_t i = 0; i < found.size() && i < kExchanged; ++i) {
    best.push_back(std::move(found[i].second));
  }
  return best;
}

Trial Search::spread(Trial trial, const Stop& stop) {
  ended_ = false;
  for (const auto& blocks : repeated_) {
    std::vector<Trial> able;
    for (const auto& source : blocks) {
      if (stopped(stop)) return trial;
      Trial tried;
      tried.draft = like(trial.draft, source, blocks);
      if (simulate(tried)) able.push_back(std::move(tried));
    }
    std::stable_sort(able.begin(), able.end(), [](const Trial& a, const Trial& b) {
      return std::pair(a.excess > 0, a.time_us) < std::pair(b.excess > 0, b.time_us);
    });
    for (std::size_t i = 0; i < able.size() && i < kSpread; ++i) {
      if (stopped(stop)) return trial;
      auto tried = polish(repair(std::move(able[i]), 0, stop), stop);
      if (fits_and_is_faster(tried, trial)) std::swap(trial, tried);
    }
  }
  return trial;
}

// Returns a draft in which blocks are run, stored and computed again like one of them.
Draft Search::like(const Draft& draft, const Block& source, std::span<const Block> blocks) const {
  auto made = draft;
  std::vector<std::pair<Run, std::size_t>> reruns;  // with the place in the block
  for (const auto& run : draft.again) {
    const auto at = std::find(source.forward.begin(), source.forward.end(), run.op);
    if (at != source.forward.end()) reruns.emplace_back(run, at - source.forward.begin());
  }
  for (const auto& block : blocks) {
    if (&block == &source) continue;
    std::erase_if(made.again, [&](const Run& run) {
      return std::find(block.forward.begin(), block.forward.end(), run.op) != block.forward.end();
    });
    for (std::size_t i = 0; i < source.forward.size(); ++i) {
      made.forward[block.forward[i]] = draft.forward[source.forward[i]];
    }
    for (std::size_t i = 0; i < source.backward.size(); ++i) {
      made.backward[block.backward[i] - graph_.forward_count] =
          draft.backward[source.backward[i] - graph_.forward_count];
    }
    const int moved = block.backward.front() - source.backward.front();
    for (const auto& [run, place] : reruns) {
      const int stage = run.stage + moved;
      if (stage >= 1 && stage <= static_cast<int>(made.backward.size())) {
        made.put({stage, block.forward[place], run.way});
      }
    }
  }
  return made;
}

// Returns a draft without some reruns, or with other implementations.
Draft Search::changed(const Trial& trial) {
  if (!repeated_.empty() && random_.unit() < kSpreadRounds) {
    const auto& blocks = repeated_[random_.below(static_cast<int>(repeated_.size()))];
    return like(trial.draft, blocks[random_.below(static_cast<int>(blocks.size()))], blocks);
  }
  if (random_.unit() < kExchangedRounds) {
    if (auto drafts = exchanges(trial); !drafts.empty()) {
      return drafts[random_.below(static_cast<int>(drafts.size()))];
    }
  }
  std::vector<std::int32_t> able;
  for (int step = graph_.forward_count; step < trial.steps(); ++step) {
    const int op = trial.op[step];
    if (op >= graph_.forward_count && graph_.ways(op) > 1) able.push_back(step);
  }
  if (able.empty() || random_.unit() >= kChangedShare) return forgotten(trial.draft);
  auto draft = trial.draft;
  const int count = std::min(static_cast<int>(able.size()), one_of(random_, kChanged));
  const int low = random_.below(static_cast<int>(able.size()) - count + 1);
  for (int i = low; i < low + count; ++i) {
    const int step = able[i], op = trial.op[step];
    const int number = random_.below(graph_.ways(op));
    draft.set_way(trial.stage[step], op, number);
    for (const auto read : graph_.reads[static_cast<std::size_t>(graph_.first_way[op] + number)]) {
      make(trial, draft, read, step);
    }
  }
  return draft;
}

// Returns a draft without the reruns of some operators in some stages.
Draft Search::forgotten(const Draft& draft) {
  auto copy = draft;
  const int count = graph_.forward_count;
  const int width = std::max(1, static_cast<int>(count * one_of(random_, kWidths)));
  const int low = random_.below(std::max(1, count - width + 1));
  const double share = one_of(random_, kForgotten);
  std::erase_if(copy.again, [&](const Run& run) {
    return run.op >= low && run.op < low + width && random_.unit() < share;
  });
  for (int op = low; op < std::min(low + width, count); ++op) {
    if (random_.unit() < kFirstWay) copy.forward[op] = 0;
  }
  return copy;
}

}  // namespace headrace::memory
