#include "synthesis/engine.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "check.hpp"
#include "random.hpp"

using headrace::Random;
using headrace::Rows;
using headrace::thrown;
using namespace headrace::synthesis;

namespace {

const auto kNothing = [] { return false; };

void add_link(Network& network, int src, int dst, double alpha, double beta) {
  network.src.push_back(src);
  network.dst.push_back(dst);
  network.alpha.push_back(alpha);
  network.beta.push_back(beta);
}

Network ring(int ranks, double alpha, double beta) {
  Network network;
  network.ranks = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    add_link(network, rank, (rank + 1) % ranks, alpha, beta);
    add_link(network, rank, (rank + ranks - 1) % ranks, alpha, beta);
    network.group.push_back(rank);
  }
  return network;
}

Deliveries allgather(int ranks, int chunks, double mb) {
  Deliveries deliveries;
  deliveries.chunk_mb = mb / chunks;
  for (int c = 0; c < ranks * chunks; ++c) {
    deliveries.origin.push_back(c / chunks);
    for (int rank = 0; rank < ranks; ++rank) deliveries.target.push_back(rank != c / chunks);
  }
  return deliveries;
}

// Random connected network: one-way links of different costs, and a capacity that some share.
Network any_network(Random& random) {
  Network network;
  network.ranks = 2 + random.below(6);
  auto cost = [&] { return 0.5 + 10 * static_cast<double>(random.unit()); };
  for (int rank = 0; rank < network.ranks; ++rank) {
    add_link(network, rank, (rank + 1) % network.ranks, random.below(2) * cost(), cost());
    network.group.push_back(rank / 3);
  }
  for (int s = 0; s < network.ranks; ++s) {
    for (int d = 0; d < network.ranks; ++d) {
      if (s == d || d == (s + 1) % network.ranks || random.below(3) > 0) continue;
      add_link(network, s, d, random.below(2) * cost(), cost());
    }
  }
  for (int shared = random.below(3); shared > 0; --shared) {
    for (std::size_t link = 0; link < network.src.size(); ++link) {
      if (random.below(3) == 0) network.shared.item.push_back(static_cast<std::int32_t>(link));
    }
    network.shared.close();
    network.shared_beta.push_back(cost());
  }
  return network;
}

// Checks the definition: causes before effects, resources used by one message at a time, every
// target reached.
void is_valid(const Network& network, const Deliveries& deliveries, const Outcome& found) {
  Resources resources(network);
  auto chunks = deliveries.origin.size();
  std::vector<double> there(chunks * network.ranks, INFINITY);
  for (std::size_t c = 0; c < chunks; ++c) there[c * network.ranks + deliveries.origin[c]] = 0;
  std::vector<double> free(resources.count(), 0.0);
  double last = 0;
  for (std::size_t m = 0; m < found.messages.link.size(); ++m) {
    auto link = found.messages.link[m];
    auto start = found.times.start[m];
    CHECK(m == 0 || start >= found.times.start[m - 1]);
    auto mb = deliveries.chunk_mb * static_cast<double>(found.messages.chunks[m].size());
    double slack = 1e-9 * (1 + start);
    for (auto& use : resources.of(link)) {
      CHECK(free[use.resource] <= start + slack);
      free[use.resource] = start + network.alpha[link] + use.beta * mb;
    }
    double end = start + network.alpha[link] + resources.slowest[link] * mb;
    for (auto chunk : found.messages.chunks[m]) {
      CHECK(there[chunk * network.ranks + network.src[link]] <= start + slack);
      auto& arrival = there[chunk * network.ranks + network.dst[link]];
      CHECK(arrival == INFINITY);  // nothing is sent twice
      arrival = end;
    }
    last = std::max(last, end);
  }
  CHECK(std::abs(last - found.times.total_us) <= 1e-9 * (1 + last));
  for (std::size_t at = 0; at < there.size(); ++at) {
    CHECK(!deliveries.target[at] || there[at] < INFINITY);
  }
}

void a_pair_takes_as_long_as_a_message() {
  Network network;
  network.ranks = 2;
  network.group = {0, 1};
  add_link(network, 0, 1, 3, 10);
  add_link(network, 1, 0, 3, 20);
  auto found = search(network, allgather(2, 1, 2), {.restarts = 4}, kNothing);
  CHECK(found.times.total_us == 43);
  CHECK(found.messages.link.size() == 2);
}

void any_network_is_served() {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed, 0);
    auto network = any_network(random);
    auto deliveries = allgather(network.ranks, 1 + random.below(4), 1);
    if (random.below(2)) {  // relays are needed
      for (std::size_t at = 0; at < deliveries.target.size(); ++at) {
        if (random.below(3) > 0) deliveries.target[at] = 0;
      }
    }
    Settings settings{.seed = seed, .restarts = 20, .batch_share = random.below(2) ? 1.0 : 0.0};
    auto found = search(network, deliveries, settings, kNothing);
    is_valid(network, deliveries, found);
    // Sorted by start time, list scheduling reproduces the times.
    auto again = replay(network, Resources(network), static_cast<int>(deliveries.origin.size()),
                        deliveries.chunk_mb, found.messages);
    CHECK(again.start == found.times.start && again.total_us == found.times.total_us);
    auto same = search(network, deliveries, settings, kNothing);
    CHECK(same.times.start == found.times.start && same.messages.link == found.messages.link);
  }
}

Network turned(Network network) {
  std::swap(network.src, network.dst);
  return network;
}

void what_is_found_backwards_combines() {
  int better = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed, 1);
    auto network = any_network(random);
    auto deliveries = allgather(network.ranks, 1 + random.below(3), 1);
    auto chunks = static_cast<int>(deliveries.origin.size());
    Settings settings{.seed = seed, .restarts = 30, .batch_share = 1, .backwards = true};
    auto found = search(network, deliveries, settings, kNothing);
    // The times are those of list scheduling of these messages over reversed links.
    auto reversed = turned(network);
    auto again = replay(reversed, Resources(reversed), chunks, deliveries.chunk_mb, found.messages);
    CHECK(again.start == found.times.start && again.total_us == found.times.total_us);
    // Every rank but the origin sends every chunk once, after it received all parts of it.
    std::vector<int> handed(static_cast<std::size_t>(chunks) * network.ranks, 0);
    for (std::size_t m = 0; m < found.messages.link.size(); ++m) {
      auto link = found.messages.link[m];
      for (auto chunk : found.messages.chunks[m]) {
        auto cell = static_cast<std::size_t>(chunk) * network.ranks;
        CHECK(++handed[cell + reversed.src[link]] == 1);
        CHECK(handed[cell + reversed.dst[link]] == 0);
      }
    }
    for (std::size_t c = 0; c < deliveries.origin.size(); ++c) {
      for (int rank = 0; rank < network.ranks; ++rank) {
        CHECK(handed[c * network.ranks + rank] == (rank != deliveries.origin[c]));
      }
    }
    // The best forward need not be the best backwards.
    settings.backwards = false;
    auto ahead = search(network, deliveries, settings, kNothing);
    std::reverse(ahead.messages.link.begin(), ahead.messages.link.end());
    Rows rows;
    for (auto m = ahead.messages.chunks.size(); m-- > 0;) {
      for (auto chunk : ahead.messages.chunks[m]) rows.item.push_back(chunk);
      rows.close();
    }
    ahead.messages.chunks = rows;
    auto back = replay(reversed, Resources(reversed), chunks, deliveries.chunk_mb, ahead.messages);
    better += found.times.total_us < back.total_us * (1 - 1e-9);
    better -= found.times.total_us > back.total_us * (1 + 1e-9);
  }
  CHECK(better > 0);
}

void what_went_before_is_waited_for() {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed, 2);
    auto network = any_network(random);
    auto deliveries = allgather(network.ranks, 1 + random.below(3), 1);
    auto chunks = static_cast<int>(deliveries.origin.size());
    Settings settings{.seed = seed, .restarts = 20, .batch_share = 1, .backwards = true};
    auto before = search(turned(network), deliveries, settings, kNothing);
    deliveries.prelude = before.messages;
    settings.backwards = false;
    auto after = search(network, deliveries, settings, kNothing);
    // Both together take the reported time, and no chunk leaves its origin before it is complete.
    auto all = before.messages;
    for (std::size_t m = 0; m < after.messages.link.size(); ++m) {
      all.link.push_back(after.messages.link[m]);
      for (auto chunk : after.messages.chunks[m]) all.chunks.item.push_back(chunk);
      all.chunks.close();
    }
    Resources resources(network);
    auto times = replay(network, resources, chunks, deliveries.chunk_mb, all);
    CHECK(times.total_us == after.times.total_us);
    CHECK(times.total_us >= before.times.total_us);
    auto first = before.messages.link.size();
    CHECK(std::equal(after.times.start.begin(), after.times.start.end(),
                     times.start.begin() + static_cast<std::ptrdiff_t>(first)));
    std::vector<double> complete(deliveries.origin.size(), 0.0);
    for (std::size_t m = 0; m < all.link.size(); ++m) {
      auto link = all.link[m];
      auto mb = deliveries.chunk_mb * static_cast<double>(all.chunks[m].size());
      for (auto chunk : all.chunks[m]) {
        auto origin = deliveries.origin[chunk];
        if (m < first && network.dst[link] == origin) {
          complete[chunk] = std::max(
              complete[chunk], times.start[m] + network.alpha[link] + resources.slowest[link] * mb);
        }
        if (m >= first && network.src[link] == origin) {
          CHECK(times.start[m] >= complete[chunk] * (1 - 1e-9));
        }
      }
    }
  }
}

void routes_are_kept() {
  auto network = ring(4, 1, 10);
  auto deliveries = allgather(4, 1, 1);
  for (int chunk = 0; chunk < 4; ++chunk) {  // clockwise only
    for (int hop = 0; hop < 3; ++hop) deliveries.routes.item.push_back((chunk + hop) % 4 * 2);
    deliveries.routes.close();
  }
  auto found = search(network, deliveries, {.restarts = 10}, kNothing);
  is_valid(network, deliveries, found);
  for (auto link : found.messages.link) CHECK(link % 2 == 0);
  CHECK(found.times.total_us == 33);
}

void symmetric_searches_send_all_images() {
  auto network = ring(6, 1, 10);
  auto deliveries = allgather(6, 2, 1);
  for (int turn = 0; turn < 6; ++turn) {
    for (int rank = 0; rank < 6; ++rank) deliveries.symmetry.push_back((rank + turn) % 6);
  }
  auto found = search(network, deliveries, {.restarts = 50, .batch_share = 1}, kNothing);
  is_valid(network, deliveries, found);
  std::multiset<int> counts[2];
  std::vector<int> per_link(12, 0);
  for (auto link : found.messages.link) ++per_link[link];
  for (int link = 0; link < 12; ++link) CHECK(per_link[link] == per_link[link % 2]);
  deliveries.symmetry[1] = 0;
  auto text = thrown<SearchError>([&] { search(network, deliveries, {.restarts = 1}, kNothing); });
  CHECK(text == "element 0 of the symmetry is no permutation of the ranks");
}

void what_cannot_be_reached_is_an_error() {
  Network network;
  network.ranks = 3;
  network.group = {0, 1, 2};
  add_link(network, 0, 1, 0, 1);
  add_link(network, 1, 0, 0, 1);
  add_link(network, 2, 0, 0, 1);
  auto text =
      thrown<SearchError>([&] { search(network, allgather(3, 1, 1), {.restarts = 3}, kNothing); });
  CHECK(text == "no construction carries every chunk to its targets");
  network.dst[0] = 7;
  text = thrown<SearchError>([&] { search(network, allgather(3, 1, 1), {}, kNothing); });
  CHECK(text == "link 0 joins ranks out of range");
}

void the_unsplit_cube_mesh_is_solved() {
  // Eight ranks, double links at 23 us/MB and single ones at 46: three rounds of 23 us suffice.
  Network network;
  network.ranks = 8;
  network.group.assign(8, 0);
  constexpr int kDouble[][2] = {{0, 1}, {0, 4}, {1, 3}, {2, 3}, {2, 6}, {4, 5}, {5, 7}, {6, 7}};
  constexpr int kSingle[][2] = {{0, 2}, {0, 3}, {1, 2}, {1, 5}, {3, 7}, {4, 6}, {4, 7}, {5, 6}};
  for (int k = 0; k < 8; ++k) {
    for (int way = 0; way < 2; ++way) {
      add_link(network, kDouble[k][way], kDouble[k][1 - way], 0, 23);
      add_link(network, kSingle[k][way], kSingle[k][1 - way], 0, 46);
    }
  }
  auto deliveries = allgather(8, 1, 1);
  for (int element = 0; element < 4; ++element) {
    constexpr int kImages[] = {0, 2, 4, 6};
    for (int rank = 0; rank < 8; ++rank) deliveries.symmetry.push_back(rank ^ kImages[element]);
  }
  auto found = search(network, deliveries, {.restarts = 20000, .target_us = 69}, kNothing);
  is_valid(network, deliveries, found);
  CHECK(found.times.total_us == 69);
}

void limits_and_interrupts_end_a_search() {
  auto network = ring(8, 1, 10);
  auto deliveries = allgather(8, 4, 1);
  auto found = search(network, deliveries, {.restarts = 1 << 30, .limit_s = 0.05}, kNothing);
  CHECK(found.struck && found.restarts >= 1);
  int polls = 0;
  auto stop = [&] { return ++polls == 2; };
  found = search(network, deliveries, {.restarts = 1 << 30, .limit_s = 60}, stop);
  CHECK(found.interrupted && !found.struck && polls == 2);
  is_valid(network, deliveries, found);
}

void batches_of_next_to_nothing_do_not_overflow() {
  // Alpha equals more chunks than an int can count.
  auto network = ring(4, 1e6, 1);
  auto found =
      search(network, allgather(4, 3, 1e-9), {.restarts = 200, .batch_share = 1}, kNothing);
  is_valid(network, allgather(4, 3, 1e-9), found);
}

}  // namespace

int main() {
  a_pair_takes_as_long_as_a_message();
  any_network_is_served();
  what_is_found_backwards_combines();
  what_went_before_is_waited_for();
  routes_are_kept();
  symmetric_searches_send_all_images();
  what_cannot_be_reached_is_an_error();
  the_unsplit_cube_mesh_is_solved();
  limits_and_interrupts_end_a_search();
  batches_of_next_to_nothing_do_not_overflow();
}
