// Constructions a second on tori, with and without their translations imposed.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "synthesis/engine.hpp"

using namespace headrace::synthesis;

namespace {

int place(int x, int y, int side) { return (x + side) % side * side + (y + side) % side; }

Network torus(int side) {
  Network network;
  network.ranks = side * side;
  for (int x = 0; x < side; ++x) {
    for (int y = 0; y < side; ++y) {
      constexpr int kWays[][2] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}};
      for (auto& way : kWays) {
        network.src.push_back(place(x, y, side));
        network.dst.push_back(place(x + way[0], y + way[1], side));
        network.alpha.push_back(0.5);
        network.beta.push_back(20);
      }
      network.group.push_back(x * side + y);
    }
  }
  return network;
}

Deliveries allgather(int side, int chunks, bool symmetric) {
  Deliveries deliveries;
  deliveries.chunk_mb = 1.0 / chunks;
  auto ranks = side * side;
  for (int c = 0; c < ranks * chunks; ++c) {
    deliveries.origin.push_back(c / chunks);
    for (int rank = 0; rank < ranks; ++rank) deliveries.target.push_back(rank != c / chunks);
  }
  for (int shift = 0; symmetric && shift < ranks; ++shift) {
    for (int rank = 0; rank < ranks; ++rank) {
      deliveries.symmetry.push_back(
          place(rank / side + shift / side, rank % side + shift % side, side));
    }
  }
  return deliveries;
}

}  // namespace

int main(int count, char** arguments) {
  double seconds = count > 1 ? std::atof(arguments[1]) : 1.0;
  std::printf("%8s %7s %10s %12s %10s\n", "torus", "chunks", "symmetry", "restarts/s", "best us");
  for (int side : {4, 8}) {
    for (int chunks : {1, 4}) {
      for (bool symmetric : {false, true}) {
        auto network = torus(side);
        auto deliveries = allgather(side, chunks, symmetric);
        auto begun = std::chrono::steady_clock::now();
        auto found =
            search(network, deliveries, {.restarts = 1 << 30, .batch_share = 1, .limit_s = seconds},
                   [] { return false; });
        std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
        std::printf("%5dx%-2d %7d %10s %12.0f %10.2f\n", side, side, chunks,
                    symmetric ? "imposed" : "none",
                    static_cast<double>(found.restarts) / spent.count(), found.times.total_us);
      }
    }
  }
}
