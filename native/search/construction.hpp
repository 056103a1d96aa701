// One construction: an event-driven pass over time that matches links and chunks by a policy.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "search/bits.hpp"
#include "search/policy.hpp"
#include "search/problem.hpp"
#include "search/replay.hpp"

namespace headrace::search {

inline constexpr int kMeasuredRanks = 64;  // beyond, distances are not measured or varied

// What constructions share: tables of the problem that do not change.
struct Setting {
  Setting(const Network& network, const Carriage& carriage);

  const Network& network;
  const Carriage& carriage;
  Resources resources;
  Symmetry symmetry;
  int ranks, links, chunks, groups;
  Rows out, in;                                    // links of each rank
  std::vector<double> intake;                      // per rank: MB/us that it can receive
  std::vector<double> group_intake;                // per group: MB/us from outside
  std::vector<std::uint8_t> slow;                  // per link: its destination has faster ones
  std::vector<std::uint8_t> crossing;              // per link: into a group whose border is scarce
  BitRows held, wanted, group_held, group_wanted;  // at first
  BitRows routed;                                  // per link: chunks that may use it; no rows: all
  std::vector<std::int32_t> load;                  // per link: how many chunks are routed over it
  std::vector<float> tail;      // routes only, links x chunks: us still ahead at dst
  bool relays = false;          // some chunk is not for everyone
  double fastest_mb_us = 0;     // us per MB of the fastest link
  BitRows slower;               // per link: chunks that other ways bring no later
  std::vector<double> release;  // per chunk: when its origin has it, after the prelude

 private:
  void find_slower();
  void find_release();
};

class Construction {
 public:
  explicit Construction(const Setting& setting);

  // Returns when the last message arrives; infinity if that would be after `deadline`.
  double build(const Policy& policy, Random& random, double deadline);
  const Messages& messages() const { return messages_; }

 private:
  struct Event {
    double time;
    std::int32_t message;     // that arrives; -1: none
    std::int32_t resource;    // that becomes free; -1: none
    std::int32_t chunk = -1;  // that its origin has from now on; -1: none
    bool operator>(const Event& other) const { return time > other.time; }
  };
  struct Turn {
    float key;
    std::int32_t link;
    bool small;
  };
  struct Choice {
    float key;
    std::int32_t chunk;
  };

  void reset();
  void measure_distances(Random& random);
  void arrive(std::int32_t message);
  bool match(bool forced);
  bool idle(std::int32_t link) const;
  int qualify(std::int32_t link, bool forced);
  bool relay_helps(std::int32_t chunk, std::int32_t dst) const;
  float order_key(std::int32_t link, int qualified);
  float chunk_key(std::int32_t link, std::int32_t chunk);
  double expected(std::int32_t link, int qualified) const;
  bool overtaken(std::int32_t link) const;
  bool small(std::int32_t link, int qualified) const;
  int batch(std::int32_t link, int qualified) const;
  bool start(std::int32_t link, bool forced);
  bool claim(std::int32_t link, std::int32_t chunk);
  void send(std::int32_t link, std::span<const std::int32_t> chunks);
  void note(std::int32_t rank, std::int32_t chunk);
  void touch(std::int32_t link);

  const Setting& s_;
  const Policy* policy_ = nullptr;
  Random* random_ = nullptr;
  double now_ = 0, deadline_ = 0, end_ = 0;
  std::int64_t missing_ = 0;  // (chunk, target) pairs that nobody has begun to serve
  BitRows held_, wanted_, seen_, group_held_, group_wanted_;
  std::vector<std::int32_t> copies_, left_, group_left_, coming_, sent_;
  std::vector<double> free_;
  std::vector<float> distance_, nearest_;  // rank x rank; chunk x rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::int32_t> touched_;
  std::vector<std::uint8_t> is_touched_;
  std::vector<Turn> turns_;
  std::vector<std::int32_t> later_;
  std::vector<std::uint64_t> qualified_;
  std::vector<Choice> choices_;
  std::vector<std::int32_t> chosen_;
  std::vector<std::uint32_t> mark_, group_mark_;  // (rank, chunk) claimed in this decision
  std::vector<std::int32_t> mark_link_, group_mark_link_;
  std::uint32_t decision_ = 0;
  std::vector<std::pair<std::int32_t, std::int32_t>> claimed_;  // (link, chunk)
  Messages messages_;
};

}  // namespace headrace::search
