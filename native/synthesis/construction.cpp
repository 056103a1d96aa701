#include "synthesis/construction.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headrace::synthesis {

namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr int kFewNeighbours = 8;  // at more, checking all of them costs more than it gains

}  // namespace

Construction::Construction(const Setting& setting) : s_(setting) {
  auto cells = static_cast<std::size_t>(s_.ranks) * s_.chunks;
  mark_.assign(cells, 0);
  mark_link_.assign(cells, -1);
  group_mark_.assign(static_cast<std::size_t>(s_.groups) * s_.chunks, 0);
  group_mark_link_.assign(group_mark_.size(), -1);
  qualified_.assign(s_.held.words(), 0);
  is_touched_.assign(s_.links, 0);
}

void Construction::reset() {
  held_ = s_.held;
  seen_ = s_.held;
  wanted_ = s_.wanted;
  group_held_ = s_.group_held;
  group_wanted_ = s_.group_wanted;
  copies_.assign(s_.chunks, 1);
  coming_.assign(s_.ranks, 0);
  sent_.assign(s_.links, 0);
  left_.resize(s_.ranks);
  group_left_.resize(s_.groups);
  missing_ = 0;
  for (int rank = 0; rank < s_.ranks; ++rank) missing_ += left_[rank] = wanted_.count(rank);
  for (int group = 0; group < s_.groups; ++group) group_left_[group] = group_wanted_.count(group);
  free_.assign(s_.resources.count(), 0.0);
  events_ = {};
  now_ = end_ = 0;
  for (std::int32_t chunk = 0; chunk < s_.chunks; ++chunk) {
    if (s_.release[chunk] <= 0) continue;
    held_.clear(s_.deliveries.origin[chunk], chunk);
    events_.push({s_.release[chunk], -1, -1, chunk});
  }
  messages_.link.clear();
  messages_.chunks = {};
  for (auto link : touched_) is_touched_[link] = 0;
  touched_.clear();
}

// Shortest-path costs, with every link's cost times a random factor to break ties between paths.
void Construction::measure_distances(Random& random) {
  auto n = static_cast<std::size_t>(s_.ranks);
  bool known = !distance_.empty();
  if (!known || s_.ranks <= kMeasuredRanks) {
    distance_.assign(n * n, kNever);
    for (std::size_t rank = 0; rank < n; ++rank) distance_[rank * n + rank] = 0;
    for (int link = 0; link < s_.links; ++link) {
      auto cost = s_.network.alpha[link] + s_.resources.slowest[link] * s_.deliveries.chunk_mb;
      distance_[static_cast<std::size_t>(s_.network.src[link]) * n + s_.network.dst[link]] =
          static_cast<float>(cost) * (0.85F + 0.3F * random.unit());
    }
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t i = 0; i < n; ++i) {
        float first = distance_[i * n + k];
        if (first == kNever) continue;
        for (std::size_t j = 0; j < n; ++j) {
          distance_[i * n + j] = std::min(distance_[i * n + j], first + distance_[k * n + j]);
        }
      }
    }
  }
  nearest_.assign(static_cast<std::size_t>(s_.chunks) * n, kNever);
  for (int chunk = 0; chunk < s_.chunks; ++chunk) {
    for (std::size_t t = 0; t < n; ++t) {
      if (!wanted_.has(t, chunk)) continue;
      nearest_[static_cast<std::size_t>(chunk) * n + t] =
          distance_[static_cast<std::size_t>(s_.deliveries.origin[chunk]) * n + t];
    }
  }
}

double Construction::build(const Policy& policy, Random& random, double deadline) {
  policy_ = &policy;
  random_ = &random;
  deadline_ = deadline;
  reset();
  bool routed = s_.deliveries.routes.size() > 0;
  if (s_.relays && !routed) measure_distances(random);
  for (int link = 0; link < s_.links; ++link) touch(link);
  while (missing_ > 0) {
    bool started = match(false);
    if (missing_ == 0) break;
    if (events_.empty()) {
      // Every link waits for a better chunk: accept any.
      for (int link = 0; link < s_.links; ++link) touch(link);
      if (!started && !match(true)) return std::numeric_limits<double>::infinity();
      if (events_.empty()) continue;
    }
    now_ = events_.top().time;
    while (!events_.empty() && events_.top().time <= now_ + kSameTime * now_) {
      auto event = events_.top();
      events_.pop();
      now_ = std::max(now_, event.time);
      if (event.message >= 0) arrive(event.message);
      if (event.chunk >= 0) {
        auto origin = s_.deliveries.origin[event.chunk];
        held_.set(origin, event.chunk);
        for (auto link : s_.out[origin]) touch(link);
      }
      if (event.resource >= 0) {
        for (auto link : s_.resources.links[event.resource]) touch(link);
      }
    }
  }
  return end_;
}

void Construction::touch(std::int32_t link) {
  link = s_.symmetry.first_link[link];
  if (is_touched_[link]) return;
  is_touched_[link] = 1;
  touched_.push_back(link);
}

void Construction::arrive(std::int32_t message) {
  auto dst = s_.network.dst[messages_.link[message]];
  for (auto chunk : messages_.chunks[message]) held_.set(dst, chunk);
  --coming_[dst];
  for (auto link : s_.out[dst]) touch(link);
  if (policy_->skip_ratio > 0) {
    for (auto link : s_.in[dst]) touch(link);
  }
}

bool Construction::idle(std::int32_t link) const {
  double soon = now_ + kSameTime * now_;
  for (auto& use : s_.resources.of(link)) {
    if (free_[use.resource] > soon) return false;
  }
  return true;
}

bool Construction::match(bool forced) {
  turns_.clear();
  for (auto link : touched_) {
    is_touched_[link] = 0;
    if (s_.symmetry.clash[link] || !idle(link)) continue;
    int qualified = qualify(link, forced);
    if (!forced && policy_->slow_skip > 0 && s_.slow[link] && random_->unit() < policy_->slow_skip)
      continue;
    if (qualified > 0) turns_.push_back({order_key(link, qualified), link, small(link, qualified)});
  }
  touched_.clear();
  std::sort(turns_.begin(), turns_.end(), [](const Turn& a, const Turn& b) {
    return a.key != b.key ? a.key < b.key : a.link < b.link;
  });
  bool any = false;
  later_.clear();
  for (auto& turn : turns_) {
    if (!idle(turn.link)) continue;
    // Links that prefer to wait start last, when the messages under way are known.
    if (!forced && turn.small) {
      later_.push_back(turn.link);
    } else {
      any |= start(turn.link, forced);
    }
  }
  for (auto link : later_) {
    if (idle(link)) any |= start(link, forced);
  }
  return any;
}

// Fills qualified_ with the chunks that the link could send now, and counts them.
int Construction::qualify(std::int32_t link, bool forced) {
  auto src = s_.network.src[link];
  auto dst = s_.network.dst[link];
  auto* held = held_.row(src);
  auto* seen = seen_.row(dst);
  auto words = held_.words();
  int count = 0;
  if (s_.deliveries.routes.size() > 0) {
    auto* routed = s_.routed.row(link);
    for (std::size_t w = 0; w < words; ++w) {
      qualified_[w] = held[w] & ~seen[w] & routed[w];
      count += std::popcount(qualified_[w]);
    }
    return count;
  }
  auto* wanted = wanted_.row(dst);
  bool only_new = s_.crossing[link] && policy_->once_per_group && !forced;
  auto* group = only_new ? group_held_.row(s_.network.group[dst]) : nullptr;
  auto* slower = policy_->skip_slower && !forced ? s_.slower.row(link) : nullptr;
  for (std::size_t w = 0; w < words; ++w) {
    auto word = held[w] & wanted[w];
    if (s_.relays) {
      for_each_bit(held[w] & ~seen[w] & ~wanted[w], w, [&](std::int32_t chunk) {
        if (relay_helps(chunk, dst)) word |= std::uint64_t{1} << (chunk & 63);
      });
    }
    if (group) word &= ~group[w];
    if (slower) word &= ~slower[w];
    qualified_[w] = word;
    count += std::popcount(word);
  }
  return count;
}

// Whether `dst`, no target of the chunk, is nearer to a target than all ranks that have it.
bool Construction::relay_helps(std::int32_t chunk, std::int32_t dst) const {
  auto n = static_cast<std::size_t>(s_.ranks);
  auto* nearest = nearest_.data() + static_cast<std::size_t>(chunk) * n;
  auto* distance = distance_.data() + static_cast<std::size_t>(dst) * n;
  for (std::size_t t = 0; t < n; ++t) {
    if (wanted_.has(t, chunk) && distance[t] < nearest[t]) return true;
  }
  return false;
}

float Construction::order_key(std::int32_t link, int qualified) {
  auto dst = s_.network.dst[link];
  float key = policy_->link_noise * random_->unit();
  if (policy_->need > 0) {
    auto time = static_cast<double>(left_[dst]) / s_.intake[dst];
    key -= policy_->need * static_cast<float>(time / (s_.chunks * s_.fastest_mb_us));
  }
  auto count = static_cast<float>(qualified);
  key += policy_->scarce * count / (count + 4);
  key -= policy_->slow * static_cast<float>(1 - s_.fastest_mb_us / s_.resources.slowest[link]);
  return key;
}

float Construction::chunk_key(std::int32_t link, std::int32_t chunk) {
  auto& p = *policy_;
  auto dst = s_.network.dst[link];
  float key = p.chunk_noise * random_->unit();
  key += p.rare * static_cast<float>(copies_[chunk]);
  if (p.inward > 0 && s_.in[dst].size() <= kFewNeighbours) {
    int have = 0;
    for (auto other : s_.in[dst]) have += seen_.has(s_.network.src[other], chunk);
    key += p.inward * static_cast<float>(have);
  }
  if (p.outward > 0 && s_.out[dst].size() <= kFewNeighbours) {
    int lack = 0;
    for (auto other : s_.out[dst]) lack += wanted_.has(s_.network.dst[other], chunk);
    key -= p.outward * static_cast<float>(lack);
  }
  if (p.tail > 0 && !s_.tail.empty()) {
    auto ahead = s_.tail[static_cast<std::size_t>(link) * s_.chunks + chunk];
    key -= p.tail * ahead / static_cast<float>(s_.fastest_mb_us * s_.deliveries.chunk_mb);
  } else if (p.tail > 0 && s_.relays) {
    auto n = static_cast<std::size_t>(s_.ranks);
    float ahead = 0;
    for (std::size_t t = 0; t < n; ++t) {
      if (wanted_.has(t, chunk)) {
        ahead = std::max(ahead, distance_[static_cast<std::size_t>(dst) * n + t]);
      }
    }
    key -= p.tail * ahead / static_cast<float>(s_.fastest_mb_us * s_.deliveries.chunk_mb);
  }
  return key;
}

// Number of chunks still expected over the link and those that share its bottleneck.
double Construction::expected(std::int32_t link, int qualified) const {
  if (s_.deliveries.routes.size() > 0) return s_.load[link] - sent_[link];
  auto dst = s_.network.dst[link];
  double rate = 1 / s_.resources.slowest[link];
  if (s_.crossing[link] && policy_->once_per_group) {
    auto group = s_.network.group[dst];
    return group_left_[group] * std::min(1.0, rate / s_.group_intake[group]);
  }
  if (s_.relays) return qualified;
  return left_[dst] * std::min(1.0, rate / s_.intake[dst]);
}

// Whether the destination's other links deliver all missing chunks before this one delivers a
// chunk.
bool Construction::overtaken(std::int32_t link) const {
  if (policy_->skip_ratio == 0 || s_.relays || s_.deliveries.routes.size() > 0) return false;
  if (s_.crossing[link] && policy_->once_per_group) return false;
  auto dst = s_.network.dst[link];
  double others = s_.intake[dst] - 1 / s_.resources.slowest[link];
  if (others <= 1e-9 * s_.intake[dst]) return false;
  double mb = s_.deliveries.chunk_mb;
  double own = s_.network.alpha[link] + s_.resources.slowest[link] * mb;
  return left_[dst] * mb / others < policy_->skip_ratio * own * (1 - 1e-6);
}

// Whether alpha would dominate the message and there may be more to send later.
bool Construction::small(std::int32_t link, int qualified) const {
  if (policy_->wait <= 0 || policy_->share_left <= 0) return false;
  double each = s_.resources.slowest[link] * s_.deliveries.chunk_mb;
  return qualified * each < policy_->wait * s_.network.alpha[link] &&
         (s_.relays || qualified < expected(link, qualified));
}

int Construction::batch(std::int32_t link, int qualified) const {
  auto& p = *policy_;
  if (p.share_left <= 0) return 1;
  double alpha = s_.network.alpha[link];
  double each = s_.resources.slowest[link] * s_.deliveries.chunk_mb;
  if (alpha <= 0 && p.round <= 0) return 1;
  double most = p.share_held * qualified;
  if (p.round > 0) {
    double length = p.round * s_.fastest_mb_us * s_.deliveries.chunk_mb;
    most = std::min(most, std::floor(length / each * (1 + 1e-6) + 0.02));
  }
  double least = p.alpha_ratio * alpha / each;
  most = std::max(most, least);
  most = std::min(most, p.share_left * expected(link, qualified));
  if (p.force_alpha_ratio) most = std::max(most, least);
  // Clamped as a double: alpha may equal more chunks than an int can count.
  return static_cast<int>(std::clamp(most + 1e-6, 1.0, static_cast<double>(qualified)));
}

bool Construction::start(std::int32_t link, bool forced) {
  int qualified = qualify(link, forced);
  if (qualified == 0) return false;
  double alpha = s_.network.alpha[link];
  double each = s_.resources.slowest[link] * s_.deliveries.chunk_mb;
  double room = deadline_ - now_ - alpha;
  if (room < each) return false;
  if (!forced && overtaken(link)) return false;
  int count = batch(link, qualified);
  if (!forced && small(link, qualified) && coming_[s_.network.src[link]] > 0) return false;
  if (count * each > room) count = std::max(1, static_cast<int>(room / each));
  choices_.clear();
  for (std::size_t w = 0; w < qualified_.size(); ++w) {
    for_each_bit(qualified_[w], w,
                 [&](std::int32_t chunk) { choices_.push_back({chunk_key(link, chunk), chunk}); });
  }
  auto less = [](const Choice& a, const Choice& b) {
    return a.key != b.key ? a.key < b.key : a.chunk < b.chunk;
  };
  if (s_.symmetry.elements == 1) {
    auto last = choices_.begin() + count;
    std::partial_sort(choices_.begin(), last, choices_.end(), less);
    chosen_.clear();
    for (auto at = choices_.begin(); at != last; ++at) chosen_.push_back(at->chunk);
    send(link, chosen_);
    return true;
  }
  std::sort(choices_.begin(), choices_.end(), less);
  ++decision_;
  claimed_.clear();
  int taken = 0;
  for (auto& choice : choices_) {
    if (taken < count && claim(link, choice.chunk)) ++taken;
  }
  if (claimed_.empty()) return false;
  std::sort(claimed_.begin(), claimed_.end());
  claimed_.erase(std::unique(claimed_.begin(), claimed_.end()), claimed_.end());
  for (std::size_t at = 0; at < claimed_.size();) {
    auto image = claimed_[at].first;
    chosen_.clear();
    for (; at < claimed_.size() && claimed_[at].first == image; ++at) {
      chosen_.push_back(claimed_[at].second);
    }
    send(image, chosen_);
  }
  return true;
}

// Adds the chunk and its images to the decision, unless two links would bring a rank the same
// chunk.
bool Construction::claim(std::int32_t link, std::int32_t chunk) {
  auto before = claimed_.size();
  bool only_new = s_.crossing[link] && policy_->once_per_group;
  for (int element = 0; element < s_.symmetry.elements; ++element) {
    auto l = s_.symmetry.link[static_cast<std::size_t>(element) * s_.links + link];
    auto c = s_.symmetry.chunk[static_cast<std::size_t>(element) * s_.chunks + chunk];
    auto dst = s_.network.dst[l];
    auto cell = static_cast<std::size_t>(dst) * s_.chunks + c;
    if (mark_[cell] == decision_ && mark_link_[cell] == l) continue;
    bool taken = mark_[cell] == decision_;
    auto border = only_new ? static_cast<std::size_t>(s_.network.group[dst]) * s_.chunks + c : 0;
    taken |= only_new && group_mark_[border] == decision_;
    if (taken) {
      for (auto i = before; i < claimed_.size(); ++i) {
        auto [l2, c2] = claimed_[i];
        auto dst2 = static_cast<std::size_t>(s_.network.dst[l2]);
        mark_[dst2 * s_.chunks + c2] = 0;
        auto group = static_cast<std::size_t>(s_.network.group[dst2]);
        if (only_new) group_mark_[group * s_.chunks + c2] = 0;
      }
      claimed_.resize(before);
      return false;
    }
    mark_[cell] = decision_;
    mark_link_[cell] = l;
    if (only_new) group_mark_[border] = decision_;
    claimed_.emplace_back(l, c);
  }
  return true;
}

void Construction::send(std::int32_t link, std::span<const std::int32_t> chunks) {
  auto message = static_cast<std::int32_t>(messages_.link.size());
  auto dst = s_.network.dst[link];
  messages_.link.push_back(link);
  for (auto chunk : chunks) {
    messages_.chunks.item.push_back(chunk);
    note(dst, chunk);
  }
  messages_.chunks.close();
  sent_[link] += static_cast<std::int32_t>(chunks.size());
  ++coming_[dst];
  double alpha = s_.network.alpha[link];
  double mb = s_.deliveries.chunk_mb * static_cast<double>(chunks.size());
  for (auto& use : s_.resources.of(link)) {
    double end = now_ + alpha + use.beta * mb;
    free_[use.resource] = end;
    events_.push({end, -1, use.resource});
  }
  double end = now_ + alpha + s_.resources.slowest[link] * mb;
  events_.push({end, message, -1});
  end_ = std::max(end_, end);
}

// Records that a rank begins to receive a chunk.
void Construction::note(std::int32_t rank, std::int32_t chunk) {
  seen_.set(rank, chunk);
  ++copies_[chunk];
  if (wanted_.has(rank, chunk)) {
    wanted_.clear(rank, chunk);
    --left_[rank];
    --missing_;
  }
  if (s_.groups > 0) {
    auto group = s_.network.group[rank];
    group_held_.set(group, chunk);
    if (group_wanted_.has(group, chunk)) {
      group_wanted_.clear(group, chunk);
      --group_left_[group];
    }
  }
  if (!nearest_.empty()) {
    auto n = static_cast<std::size_t>(s_.ranks);
    auto* nearest = nearest_.data() + static_cast<std::size_t>(chunk) * n;
    auto* distance = distance_.data() + static_cast<std::size_t>(rank) * n;
    for (std::size_t t = 0; t < n; ++t) {
      if (nearest[t] != kNever) nearest[t] = std::min(nearest[t], distance[t]);
    }
  }
}

}  // namespace headrace::synthesis
