#include "search/engine.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>

#include "search/construction.hpp"

namespace headrace::search {

namespace {

constexpr auto kPollEvery = std::chrono::milliseconds(20);  // looks for signals
// Sends that would end after this fraction of the best are left out: a construction that only just
// fails costs little, and one that succeeds had no time for detours. Above 1, since list scheduling
// may still shorten what was built.
constexpr float kAmbitions[] = {1.02F, 1.02F, 0.999F, 0.98F, 0.95F, 0.9F, 0.8F};
constexpr float kMutation = 0.2F;  // chance of each choice to be drawn anew

// The same messages in the order of their start: then list scheduling repeats the same times.
void sort_by_start(Messages& messages, Times& times) {
  std::vector<std::int32_t> order(messages.link.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return times.start[a] < times.start[b]; });
  Messages sorted;
  std::vector<double> start;
  for (auto m : order) {
    sorted.link.push_back(messages.link[m]);
    for (auto chunk : messages.chunks[m]) sorted.chunks.item.push_back(chunk);
    sorted.chunks.close();
    start.push_back(times.start[m]);
  }
  messages = std::move(sorted);
  times.start = std::move(start);
}

}  // namespace

Outcome search(const Network& network, const Carriage& carriage, const Settings& settings,
               const std::function<bool()>& poll) {
  check(network);
  Setting setting(network, carriage);
  Construction construction(setting);
  auto begun = std::chrono::steady_clock::now();
  auto polled = begun;
  auto infinity = std::numeric_limits<double>::infinity();
  auto share = static_cast<float>(settings.batch_share);
  Outcome best;
  best.times.total_us = infinity;
  std::optional<Policy> champion;
  for (std::int64_t restart = 0; restart < settings.restarts; ++restart) {
    auto now = std::chrono::steady_clock::now();
    if (now - polled > kPollEvery) {
      if (poll()) {
        best.interrupted = true;
        break;
      }
      polled = now;
    }
    if (restart > 0 && std::chrono::duration<double>(now - begun).count() > settings.limit_s) {
      best.struck = true;
      break;
    }
    Random random(settings.seed, static_cast<std::uint64_t>(restart));
    auto policy = Policy::drawn(random, share);
    if (champion && restart % 2 == 1) {
      policy = *champion;
      policy.mutate(random, share, kMutation);
    }
    best.restarts = restart + 1;
    double deadline = best.times.total_us * random.one_of(kAmbitions);
    deadline = std::max(deadline, settings.target_us * (1 + kSameTime));
    double built = construction.build(policy, random, deadline);
    if (built == infinity) continue;
    auto times = replay(network, setting.resources, setting.chunks, carriage.chunk_mb,
                        construction.messages());
    if (times.total_us >= best.times.total_us * (1 - kSameTime)) continue;
    champion = policy;
    best.messages = construction.messages();
    best.times = std::move(times);
    best.history.emplace_back(restart, best.times.total_us);
    if (best.times.total_us <= settings.target_us * (1 + kSameTime)) break;
  }
  if (champion == std::nullopt) {
    if (best.interrupted) return best;
    throw SearchError("no construction carries every chunk to its targets");
  }
  sort_by_start(best.messages, best.times);
  return best;
}

}  // namespace headrace::search
