// One construction: an event-driven pass over time that matches links with chunks by a policy.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "synthesis/bits.hpp"
#include "synthesis/policy.hpp"
#include "synthesis/problem.hpp"
#include "synthesis/replay.hpp"

namespace headrace::synthesis {

inline constexpr int kMeasuredRanks = 64;  // distances are neither measured nor varied beyond

// Constant tables of the problem, shared by all constructions.
struct Setting {
  Setting(const Network& network, const Deliveries& deliveries);

  const Network& network;
  const Deliveries& deliveries;
  Resources resources;
  Symmetry symmetry;
  int ranks, links, chunks, groups;
  Rows out, in;                        // per rank
  std::vector<double> intake;          // per rank: MB/us that it can receive
  std::vector<double> group_intake;    // per group: MB/us from outside
  std::vector<std::uint8_t> slow;      // per link: another link to its destination is faster
  std::vector<std::uint8_t> crossing;  // per link: into a group with a scarce border
  BitRows held, wanted, group_held, group_wanted;  // initially
  BitRows routed;                                  // per link: its routed chunks; no rows: all
  std::vector<std::int32_t> load;                  // per link: number of chunks routed over it
  std::vector<float> tail;      // routed only, links x chunks: us from dst to the end
  bool relays = false;          // some chunk does not go to every rank
  double fastest_mb_us = 0;     // us per MB of the fastest link
  BitRows slower;               // per link: chunks that other paths deliver no later
  std::vector<double> release;  // per chunk: end of its prelude at the origin

 private:
  void find_slower();
  void find_release();
};

class Construction {
 public:
  explicit Construction(const Setting& setting);

  // Returns the time of the last arrival; infinity if it would exceed `deadline`.
  double build(const Policy& policy, Random& random, double deadline);
  const Messages& messages() const { return messages_; }

 private:
  struct Event {
    double time;
    std::int32_t message;     // arrives; -1: none
    std::int32_t resource;    // becomes free; -1: none
    std::int32_t chunk = -1;  // becomes available at its origin; -1: none
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
  std::int64_t missing_ = 0;  // (chunk, target) pairs without a message
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

}  // namespace headrace::synthesis
