#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "synthesis/construction.hpp"

namespace headrace::synthesis {

namespace {

// A group's border is scarce if its members exchange data faster than it comes in from outside, by
// this factor; a chunk is then sent into the group once.
constexpr double kScarce = 0.7;

// A link is slow if its destination has one that is faster by this factor.
constexpr double kSlower = 1.25;

// Rate of the links together, in MB/us: feasible, not always the maximum.
double rate_over(const Network& network, std::span<const std::int32_t> links) {
  std::vector<double> rate(network.src.size(), 0.0);
  for (auto link : links) rate[link] = 1 / network.beta[link];
  for (std::size_t shared = 0; shared < network.shared.size(); ++shared) {
    double wished = 0;
    for (auto link : network.shared[shared]) wished += rate[link];
    double most = 1 / network.shared_beta[shared];
    if (wished <= most) continue;
    for (auto link : network.shared[shared]) rate[link] *= most / wished;
  }
  return std::accumulate(rate.begin(), rate.end(), 0.0);
}

// Microseconds from the end of each link of one chunk's routes to the farthest end.
class Tails {
 public:
  Tails(const Setting& setting, std::vector<float>& tail) : s_(setting), tail_(tail) {}

  void measure(std::int32_t chunk) {
    for (auto link : s_.deliveries.routes[chunk]) visit(link, chunk);
  }

 private:
  float visit(std::int32_t link, std::int32_t chunk) {
    auto& mine = tail_[static_cast<std::size_t>(link) * s_.chunks + chunk];
    if (mine >= 0) return mine;
    mine = 0;  // cycles of a route count once
    float longest = 0;
    for (auto next : s_.out[s_.network.dst[link]]) {
      if (!s_.routed.has(next, chunk) || s_.network.dst[next] == s_.network.src[link]) continue;
      auto own = s_.network.alpha[next] + s_.resources.slowest[next] * s_.deliveries.chunk_mb;
      longest = std::max(longest, static_cast<float>(own) + visit(next, chunk));
    }
    return tail_[static_cast<std::size_t>(link) * s_.chunks + chunk] = longest;
  }

  const Setting& s_;
  std::vector<float>& tail_;
};

}  // namespace

Setting::Setting(const Network& given, const Deliveries& carried)
    : network(given),
      deliveries(carried),
      resources(given),
      symmetry(given, resources, carried),
      ranks(given.ranks),
      links(static_cast<int>(given.src.size())),
      chunks(static_cast<int>(carried.origin.size())),
      groups(given.group.empty() ? 0
                                 : 1 + *std::max_element(given.group.begin(), given.group.end())) {
  for (auto* ends : {&network.src, &network.dst}) {
    auto& rows = ends == &network.src ? out : in;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      for (std::int32_t link = 0; link < links; ++link) {
        if ((*ends)[link] == rank) rows.item.push_back(link);
      }
      rows.close();
    }
  }
  double fastest = std::numeric_limits<double>::infinity();
  for (auto beta : resources.slowest) fastest = std::min(fastest, beta);
  fastest_mb_us = fastest;

  held = BitRows(ranks, chunks);
  wanted = BitRows(ranks, chunks);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    held.set(deliveries.origin[chunk], chunk);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      if (rank == deliveries.origin[chunk]) continue;
      if (deliveries.target[static_cast<std::size_t>(chunk) * ranks + rank]) {
        wanted.set(rank, chunk);
      } else {
        relays = true;
      }
    }
  }
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    intake.push_back(rate_over(network, in[rank]));
  }

  slow.assign(links, 0);
  for (std::int32_t link = 0; link < links; ++link) {
    for (auto other : in[network.dst[link]]) {
      slow[link] |= resources.slowest[other] * kSlower < resources.slowest[link];
    }
  }

  crossing.assign(links, 0);
  group_held = BitRows(groups, chunks);
  group_wanted = BitRows(groups, chunks);
  for (std::int32_t group = 0; group < groups; ++group) {
    std::vector<std::int32_t> entering;
    double inside = 0;
    int members = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      if (network.group[rank] != group) continue;
      ++members;
      std::vector<std::int32_t> local;
      for (auto link : in[rank]) {
        (network.group[network.src[link]] == group ? local : entering).push_back(link);
      }
      inside += rate_over(network, local);
      for (std::size_t w = 0; w < held.words(); ++w) {
        group_held.row(group)[w] |= held.row(rank)[w];
        group_wanted.row(group)[w] |= wanted.row(rank)[w];
      }
    }
    for (std::size_t w = 0; w < held.words(); ++w) {
      group_wanted.row(group)[w] &= ~group_held.row(group)[w];
    }
    group_intake.push_back(rate_over(network, entering));
    bool scarce = members > 1 && group_intake.back() < kScarce * inside;
    for (auto link : entering) crossing[link] = scarce;
  }

  find_release();
  if (deliveries.routes.size() == 0) {
    find_slower();
    return;
  }
  routed = BitRows(links, chunks);
  load.assign(links, 0);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    for (auto link : deliveries.routes[chunk]) {
      if (link < 0 || link >= links) throw SearchError("a route names a link that does not exist");
      if (!routed.has(link, chunk)) ++load[link];
      routed.set(link, chunk);
    }
  }
  tail.assign(static_cast<std::size_t>(links) * chunks, -1.0F);
  Tails tails(*this, tail);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) tails.measure(chunk);
}

// Time at which the prelude is done with each chunk; the same for all images.
void Setting::find_release() {
  release.assign(chunks, 0.0);
  auto& before = deliveries.prelude;
  if (before.link.empty()) return;
  auto times = replay(network, resources, chunks, deliveries.chunk_mb, before);
  for (std::size_t m = 0; m < before.link.size(); ++m) {
    auto link = before.link[m];
    double mb = deliveries.chunk_mb * static_cast<double>(before.chunks[m].size());
    double end = times.start[m] + network.alpha[link] + resources.slowest[link] * mb;
    for (auto chunk : before.chunks[m]) {
      if (network.dst[link] == deliveries.origin[chunk]) {
        release[chunk] = std::max(release[chunk], end);
      }
    }
  }
  auto own = release;
  for (std::size_t at = 0; at < symmetry.chunk.size(); ++at) {
    auto& latest = release[symmetry.chunk[at]];
    latest = std::max(latest, own[at % static_cast<std::size_t>(chunks)]);
  }
}

// Marks for each link the chunks that other paths deliver to its destination no later.
void Setting::find_slower() {
  slower = BitRows(links, chunks);
  if (ranks > kMeasuredRanks) return;
  auto n = static_cast<std::size_t>(ranks);
  auto cost = [&](int link) {
    return network.alpha[link] + resources.slowest[link] * deliveries.chunk_mb;
  };
  std::vector<double> distance(n * n, std::numeric_limits<double>::infinity());
  for (std::size_t rank = 0; rank < n; ++rank) distance[rank * n + rank] = 0;
  for (int link = 0; link < links; ++link) {
    distance[network.src[link] * n + network.dst[link]] = cost(link);
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (i == k || j == k) continue;
        auto detour = distance[i * n + k] + distance[k * n + j];
        distance[i * n + j] = std::min(distance[i * n + j], detour);
      }
    }
  }
  // Chunks of one origin are equivalent here.
  BitRows of_origin(n, chunks);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    of_origin.set(deliveries.origin[chunk], chunk);
  }
  for (int link = 0; link < links; ++link) {
    auto to = static_cast<std::size_t>(network.dst[link]);
    for (std::size_t from = 0; from < n; ++from) {
      bool own = from == static_cast<std::size_t>(network.src[link]);
      double other = std::numeric_limits<double>::infinity();
      for (auto last : in[to]) {
        if (last == link && own) continue;
        other = std::min(other, distance[from * n + network.src[last]] + cost(last));
      }
      if (other > cost(link) * (1 + kSameTime)) continue;
      for (std::size_t w = 0; w < slower.words(); ++w) {
        slower.row(link)[w] |= of_origin.row(from)[w];
      }
    }
  }
}

}  // namespace headrace::synthesis
