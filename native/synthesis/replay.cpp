#include "synthesis/replay.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <string>
#include <utility>

namespace headrace::synthesis {

namespace {

struct Event {
  double time;
  std::int32_t message;  // arrives; -1: only a resource becomes free
  bool operator>(const Event& other) const { return time > other.time; }
};

// Precedence constraints: for each message its successors, and the number of its predecessors.
class Precedences {
 public:
  Precedences(const Network& network, int chunks, const Messages& messages) {
    auto count = messages.link.size();
    pending.assign(count, 0);
    // The rows (of one chunk each) that bring a chunk to a rank, newest first, as linked lists.
    std::vector<std::int64_t> newest(static_cast<std::size_t>(network.ranks) * chunks, -1);
    std::vector<std::int64_t> older;
    std::vector<std::int32_t> message;
    std::vector<std::int32_t> last(count, -1);  // to count each predecessor once
    std::vector<std::vector<std::int32_t>> after(count);
    for (std::size_t m = 0; m < count; ++m) {
      auto src = static_cast<std::size_t>(network.src[messages.link[m]]);
      for (auto chunk : messages.chunks[m]) {
        for (auto row = newest[src * chunks + chunk]; row >= 0; row = older[row]) {
          auto before = message[row];
          if (last[before] == static_cast<std::int32_t>(m)) continue;
          last[before] = static_cast<std::int32_t>(m);
          after[before].push_back(static_cast<std::int32_t>(m));
          ++pending[m];
        }
      }
      auto dst = static_cast<std::size_t>(network.dst[messages.link[m]]);
      for (auto chunk : messages.chunks[m]) {
        older.push_back(
            std::exchange(newest[dst * chunks + chunk], static_cast<std::int64_t>(message.size())));
        message.push_back(static_cast<std::int32_t>(m));
      }
    }
    for (auto& mine : after) {
      behind.item.insert(behind.item.end(), mine.begin(), mine.end());
      behind.close();
    }
  }

  Rows behind;
  std::vector<std::int32_t> pending;
};

}  // namespace

Times replay(const Network& network, const Resources& resources, int chunks, double chunk_mb,
             const Messages& messages) {
  auto count = messages.link.size();
  Precedences precedences(network, chunks, messages);
  std::vector<std::vector<std::int32_t>> lane(network.src.size());
  for (std::size_t m = 0; m < count; ++m) {
    lane[messages.link[m]].push_back(static_cast<std::int32_t>(m));
  }
  std::vector<std::size_t> head(network.src.size(), 0);
  std::vector<double> free(resources.count(), 0.0);
  std::set<std::int32_t> ready;  // first of their lane, with all chunks at the source
  auto offer = [&](std::int32_t link) {
    if (head[link] == lane[link].size()) return;
    auto m = lane[link][head[link]];
    if (precedences.pending[m] == 0) ready.insert(m);
  };
  for (std::size_t link = 0; link < lane.size(); ++link) offer(static_cast<std::int32_t>(link));
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  Times times;
  times.start.assign(count, -1.0);
  double now = 0;
  while (true) {
    double soon = now + kSameTime * now;
    for (auto at = ready.begin(); at != ready.end();) {
      auto m = *at;
      auto link = messages.link[m];
      auto uses = resources.of(link);
      bool idle = std::all_of(uses.begin(), uses.end(),
                              [&](auto& use) { return free[use.resource] <= soon; });
      if (!idle) {
        ++at;
        continue;
      }
      double mb = chunk_mb * static_cast<double>(messages.chunks[m].size());
      times.start[m] = now;
      for (auto& use : uses) {
        double end = now + network.alpha[link] + use.beta * mb;
        free[use.resource] = end;
        if (use.beta < resources.slowest[link]) events.push({end, -1});
      }
      double end = now + network.alpha[link] + resources.slowest[link] * mb;
      events.push({end, m});
      times.total_us = std::max(times.total_us, end);
      ++head[link];
      at = ready.erase(at);
      // The lane's next message cannot start before this one ends: it is offered then.
    }
    if (events.empty()) break;
    now = events.top().time;
    while (!events.empty() && events.top().time <= now + kSameTime * now) {
      auto event = events.top();
      events.pop();
      now = std::max(now, event.time);
      if (event.message < 0) continue;
      offer(messages.link[event.message]);
      for (auto m : precedences.behind[event.message]) {
        if (--precedences.pending[m] > 0) continue;
        auto link = messages.link[m];
        if (lane[link][head[link]] == m) ready.insert(m);
      }
    }
  }
  for (std::size_t m = 0; m < count; ++m) {
    if (times.start[m] < 0) {
      throw SearchError("message " + std::to_string(m) + " can never start");
    }
  }
  return times;
}

}  // namespace headrace::synthesis
