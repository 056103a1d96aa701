// Local search for fast schedules within a budget.
//
// In a draft any set of reruns is a valid schedule: what is not computed again is kept until its
// next read. So the search adds and removes reruns. `repair` lowers the memory at the highest step
// until all steps fit; each of its moves ends a storage's life before that step and computes it
// again for its next reader, with all that this needs, or runs an operator by another
// implementation. `polish` removes reruns and slow implementations that the budget does not need.
// `improve` forgets the reruns of some operators at random, or runs some backward operators by
// other implementations, repairs and polishes again, and keeps what is faster.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "memory/draft.hpp"
#include "random.hpp"

namespace headrace::memory {

// Operators of one of several equal blocks, such as layers.
struct Block {
  std::vector<std::int32_t> forward, backward;  // indices in the graph
};

// Moves on the drafts of one graph and budget; equal seeds give equal results where `stop`, which
// is polled in all of them some hundred times a second, does not end them. Once true, `stop` stays
// true: moves within moves poll it anew.
class Search {
 public:
  using Stop = std::function<bool()>;

  // `repeated` has equal blocks, class by class. Throws GraphError for wrong tables.
  Search(Graph graph, std::int64_t budget, std::uint64_t seed,
         std::vector<std::vector<Block>> repeated);

  const Graph& graph() const { return graph_; }
  bool simulate(Trial& trial);

  // Returns the draft of a plain run. Throws GraphError if there is none.
  Trial plain();

  // Returns a draft that fits, or the one with the least excess that moves lead to. Moves' merits
  // are disturbed by factors whose logarithm has the standard deviation `noise`.
  Trial repair(Trial trial, double noise, const Stop& stop);

  // Returns a draft that fits if this one does, without reruns and slow implementations that it can
  // do without.
  Trial polish(Trial trial, const Stop& stop);

  // Returns the best draft of some rounds that change, repair and polish, from this one and, where
  // these lead nowhere, from the plain run; `found` is called with each that is faster than those
  // before.
  Trial improve(const Trial& trial, std::int64_t rounds, const Stop& stop,
                const std::function<void(const Trial&)>& found);

  // Returns the best draft with other implementations that are faster together. A backward operator
  // that reads what its forward operator does not create yet is changed with it, and what is then
  // too much memory is repaired: neither step alone would be taken.
  Trial exchanged(Trial trial, const Stop& stop);

  // Returns the best draft in which equal blocks are like one of them.
  Trial spread(Trial trial, const Stop& stop);

 private:
  struct Spanning {
    std::int32_t storage, reader;  // its next reader's step
  };
  struct Split;

  bool stopped(const Stop& stop);
  double disturbance(double noise);
  bool fits_and_is_faster(const Trial& tried, const Trial& trial) const;
  bool try_into(Trial& trial, Trial& scratch);
  void drop_unread(Trial& trial);
  const Instance& read_at(const Trial& trial, int storage, int step) const;
  bool exceeds(const Trial& trial, const Instance& instance, int step, std::int64_t freed) const;
  bool needed(const Trial& trial, int step) const;
  bool too_large(const Trial& trial, int step, int way) const;

  void other_ways(const Trial& trial, std::vector<Draft>& moves) const;
  std::vector<Spanning> spanning(const Trial& trial) const;
  void not_reading(const Trial& trial, const Spanning& each, std::vector<Draft>& moves) const;
  bool split(const Trial& trial, const Spanning& each, Split& made) const;
  int creating(int op, int storage, const std::int32_t* now) const;
  bool creates(int way, int storage) const;
  double make(const Trial& trial, Draft& draft, int storage, int reader) const;
  std::vector<Draft> exchanges(const Trial& trial) const;

  Draft changed(const Trial& trial);
  Draft forgotten(const Draft& draft);
  Draft like(const Draft& draft, const Block& source, std::span<const Block> blocks) const;

  Graph graph_;
  std::int64_t budget_;
  Random random_;
  std::vector<std::vector<Block>> repeated_;
  bool ended_ = false;
  std::chrono::steady_clock::time_point polled_{};
};

}  // namespace headrace::memory
