#include "synthesis/engine.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "synthesis/construction.hpp"

namespace headrace::synthesis {

namespace {

constexpr auto kPollEvery = std::chrono::milliseconds(20);  // signals
// Deadlines of a construction, as fractions of the best time; sends that would end later are left
// out. A construction that just fails costs little, and one that succeeds had no time for detours.
// Above 1, since list scheduling may still shorten the result.
constexpr float kDeadlineFactors[] = {1.02F, 1.02F, 0.999F, 0.98F, 0.95F, 0.9F, 0.8F};
constexpr float kMutation = 0.2F;  // probability of redrawing each parameter

// Sorts the messages by start time: list scheduling then reproduces the same times.
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

// Time reversal: every message in the opposite direction, last arrival first. Turns delivery into
// reduction.
Messages reversed_messages(const Setting& setting, const Messages& messages, const Times& times) {
  auto count = messages.link.size();
  std::vector<double> end(count);
  for (std::size_t m = 0; m < count; ++m) {
    auto link = messages.link[m];
    double mb = setting.deliveries.chunk_mb * static_cast<double>(messages.chunks[m].size());
    end[m] = times.start[m] + setting.network.alpha[link] + setting.resources.slowest[link] * mb;
  }
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return end[a] > end[b]; });
  Messages turned;
  for (auto m : order) {
    turned.link.push_back(messages.link[m]);
    for (auto chunk : messages.chunks[m]) turned.chunks.item.push_back(chunk);
    turned.chunks.close();
  }
  return turned;
}

// Evaluates constructions, as built or time-reversed.
class Evaluator {
 public:
  Evaluator(const Setting& setting, bool backwards)
      : setting_(setting), reversed_(setting.network) {
    backwards_ = backwards;
    std::swap(reversed_.src, reversed_.dst);
  }

  std::pair<Messages, Times> operator()(const Messages& built) const {
    auto times = after_prelude(built);
    if (!backwards_) return {built, std::move(times)};
    auto turned = reversed_messages(setting_, built, times);
    auto turned_times = timed(reversed_, turned);
    return {std::move(turned), std::move(turned_times)};
  }

 private:
  Times timed(const Network& network, const Messages& messages) const {
    // A resource has the same links in both directions.
    return replay(network, setting_.resources, setting_.chunks, setting_.deliveries.chunk_mb,
                  messages);
  }

  // Times after the prelude, which is scheduled first and left out.
  Times after_prelude(const Messages& built) const {
    auto& prelude = setting_.deliveries.prelude;
    if (prelude.link.empty()) return timed(setting_.network, built);
    auto all = prelude;
    for (std::size_t m = 0; m < built.link.size(); ++m) {
      all.link.push_back(built.link[m]);
      for (auto chunk : built.chunks[m]) all.chunks.item.push_back(chunk);
      all.chunks.close();
    }
    auto times = timed(setting_.network, all);
    times.start.erase(times.start.begin(), times.start.begin() + std::ssize(prelude.link));
    return times;
  }

  const Setting& setting_;
  Network reversed_;
  bool backwards_;
};

}  // namespace

Outcome search(const Network& network, const Deliveries& deliveries, const Settings& settings,
               const std::function<bool()>& poll) {
  check(network);
  Setting setting(network, deliveries);
  Construction construction(setting);
  Evaluator evaluate(setting, settings.backwards);
  auto begun = std::chrono::steady_clock::now();
  auto polled = begun;
  auto infinity = std::numeric_limits<double>::infinity();
  auto share = static_cast<float>(settings.batch_share);
  Outcome best;
  best.times.total_us = infinity;
  std::optional<Policy> incumbent;
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
    if (incumbent && restart % 2 == 1) {
      policy = *incumbent;
      policy.mutate(random, share, kMutation);
    }
    best.restarts = restart + 1;
    double deadline = best.times.total_us * random.one_of(kDeadlineFactors);
    deadline = std::max(deadline, settings.target_us * (1 + kSameTime));
    double built = construction.build(policy, random, deadline);
    if (built == infinity) continue;
    auto [messages, times] = evaluate(construction.messages());
    if (times.total_us >= best.times.total_us * (1 - kSameTime)) continue;
    incumbent = policy;
    best.messages = std::move(messages);
    best.times = std::move(times);
    best.history.emplace_back(restart, best.times.total_us);
    if (best.times.total_us <= settings.target_us * (1 + kSameTime)) break;
  }
  if (incumbent == std::nullopt) {
    if (best.interrupted) return best;
    throw SearchError("no construction carries every chunk to its targets");
  }
  sort_by_start(best.messages, best.times);
  return best;
}

}  // namespace headrace::synthesis
