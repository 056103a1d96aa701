#include "attention/clusters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "random.hpp"

namespace headrace::attention {
namespace {

using Doubles = std::vector<double>;

constexpr int kStarts = 4;       // of which the best is taken
constexpr int kMostPasses = 50;  // three to six are usual
// Of all squared distances: gains below are rounding.
constexpr double kLeastGain = 1e-13;
constexpr std::size_t kNone = ~std::size_t{0};

// The squared distances of one request's heads, and clusters of them. The mean of a cluster is at
// the squared distance S / n - W / n^2 from a head: n are the members, S the sum of the head's
// squared distances to them, W the sum of those of the pairs of members. So features are read once.
class Clusters {
 public:
  Clusters(std::size_t heads, std::size_t clusters)
      : heads_(heads),
        clusters_(clusters),
        distances_(heads * heads),
        nearest_(heads),
        cluster_(heads),
        best_(heads),
        seeds_(clusters),
        members_(clusters),
        pairs_(clusters),
        within_(clusters),
        share_(clusters),
        sums_(heads * clusters) {}

  void find(const float* points, std::size_t features, std::int32_t* representative) {
    measure(points, features);
    double least = std::numeric_limits<double>::infinity();
    Random random(heads_, clusters_);
    for (int start = 0; start < kStarts; ++start) {
      seed(start == 0 ? nullptr : &random);
      assign();
      for (int pass = 0; pass < kMostPasses && improve(); ++pass) {
      }
      auto sum = scatter();
      if (sum < least) {
        least = sum;
        best_ = cluster_;
      }
    }
    cluster_ = best_;
    count();
    represent(representative);
  }

 private:
  double* row(std::size_t head) { return distances_.data() + head * heads_; }

  void measure(const float* points, std::size_t features) {
    total_ = 0;
    for (std::size_t i = 0; i < heads_; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        // Of even and odd features: two lanes.
        double sums[2] = {};
        auto* a = points + i * features;
        auto* b = points + j * features;
        std::size_t f = 0;
        for (; f + 2 <= features; f += 2) {
          for (std::size_t lane = 0; lane < 2; ++lane) {
            auto difference = static_cast<double>(a[f + lane]) - static_cast<double>(b[f + lane]);
            sums[lane] += difference * difference;
          }
        }
        if (f < features) {
          auto difference = static_cast<double>(a[f]) - static_cast<double>(b[f]);
          sums[0] += difference * difference;
        }
        row(i)[j] = row(j)[i] = sums[0] + sums[1];
        total_ += row(i)[j];
      }
    }
  }

  // Without a random stream each seed is farthest from those before: clusters farther from each
  // other than wide have one each. With it, greedy k-means++.
  void seed(Random* random) {
    std::fill(nearest_.begin(), nearest_.end(), std::numeric_limits<double>::infinity());
    std::fill(cluster_.begin(), cluster_.end(), kNone);
    for (std::size_t k = 0; k < clusters_; ++k) {
      auto head = random == nullptr ? farthest() : sampled(*random, k);
      seeds_[k] = head;
      cluster_[head] = k;
      for (std::size_t i = 0; i < heads_; ++i) nearest_[i] = std::min(nearest_[i], row(head)[i]);
    }
  }

  // Heads that are equal to seeds come last, and then in order.
  std::size_t farthest() const {
    std::size_t result = kNone;
    for (std::size_t i = 0; i < heads_; ++i) {
      if (cluster_[i] != kNone) continue;
      if (result == kNone || nearest_[i] > nearest_[result]) result = i;
    }
    return result;
  }

  std::size_t sampled(Random& random, std::size_t k) {
    if (k == 0) return static_cast<std::size_t>(random.below(static_cast<int>(heads_)));
    double sum = 0;
    for (auto distance : nearest_) sum += distance;
    if (sum == 0) return farthest();
    // The one of a few that leaves the least sum.
    constexpr int kCandidates = 4;
    std::size_t result = kNone;
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kCandidates; ++i) {
      auto candidate = at_sum(static_cast<double>(random.unit()) * sum);
      double left = 0;
      for (std::size_t j = 0; j < heads_; ++j) left += std::min(nearest_[j], row(candidate)[j]);
      if (left < least) {
        least = left;
        result = candidate;
      }
    }
    return result;
  }
  // The head at which the sums of distances to seeds exceed `sum`.
  std::size_t at_sum(double sum) const {
    for (std::size_t i = 0; i < heads_; ++i) {
      if (sum < nearest_[i]) return i;
      sum -= nearest_[i];
    }
    return farthest();
  }

  void assign() {
    for (std::size_t i = 0; i < heads_; ++i) {
      if (cluster_[i] != kNone) continue;
      std::size_t nearest = 0;
      for (std::size_t k = 1; k < clusters_; ++k) {
        if (row(i)[seeds_[k]] < row(i)[seeds_[nearest]]) nearest = k;
      }
      cluster_[i] = nearest;
    }
    count();
  }

  void count() {
    std::fill(members_.begin(), members_.end(), 0.0);
    std::fill(pairs_.begin(), pairs_.end(), 0.0);
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (std::size_t i = 0; i < heads_; ++i) {
      members_[cluster_[i]] += 1;
      auto* sums = sums_.data() + i * clusters_;
      for (std::size_t j = 0; j < heads_; ++j) sums[cluster_[j]] += row(i)[j];
      pairs_[cluster_[i]] += sums[cluster_[i]] / 2;
    }
    for (std::size_t k = 0; k < clusters_; ++k) divide(k);
  }
  void divide(std::size_t k) {
    within_[k] = pairs_[k] / members_[k];
    share_[k] = 1 / (members_[k] + 1);
  }

  // Moves each head whose move makes the scatter less (Hartigan's method, whose results Lloyd's
  // cannot improve). A cluster's only member has nothing to gain. Returns whether any moved.
  bool improve() {
    bool moved = false;
    for (std::size_t i = 0; i < heads_; ++i) {
      auto from = cluster_[i];
      auto n = members_[from];
      auto* sums = sums_.data() + i * clusters_;
      if (n < 2) continue;
      auto gain = (sums[from] - within_[from]) / (n - 1);
      auto least = gain - kLeastGain * total_;
      auto to = from;
      for (std::size_t k = 0; k < clusters_; ++k) {
        auto cost = (sums[k] - within_[k]) * share_[k];
        if (cost < least && k != from) {
          least = cost;
          to = k;
        }
      }
      if (to == from) continue;
      move(i, to);
      moved = true;
    }
    return moved;
  }

  void move(std::size_t head, std::size_t to) {
    auto from = cluster_[head];
    auto* sums = sums_.data() + head * clusters_;
    pairs_[from] -= sums[from];
    pairs_[to] += sums[to];
    members_[from] -= 1;
    members_[to] += 1;
    divide(from);
    divide(to);
    cluster_[head] = to;
    auto* distances = row(head);
    for (std::size_t i = 0; i < heads_; ++i) {
      sums_[i * clusters_ + from] -= distances[i];
      sums_[i * clusters_ + to] += distances[i];
    }
  }

  double scatter() const {
    double sum = 0;
    for (auto within : within_) sum += within;
    return sum;
  }

  void represent(std::int32_t* representative) {
    std::fill(seeds_.begin(), seeds_.end(), kNone);
    auto sum_of = [&](std::size_t head) { return sums_[head * clusters_ + cluster_[head]]; };
    for (std::size_t i = 0; i < heads_; ++i) {
      auto& medoid = seeds_[cluster_[i]];
      if (medoid == kNone || sum_of(i) < sum_of(medoid)) medoid = i;
    }
    for (std::size_t i = 0; i < heads_; ++i) {
      representative[i] = static_cast<std::int32_t>(seeds_[cluster_[i]]);
    }
  }

  std::size_t heads_;
  std::size_t clusters_;
  double total_ = 0;   // of the distances of all pairs
  Doubles distances_;  // squared: [heads, heads]
  Doubles nearest_;    // squared distance to a seed
  std::vector<std::size_t> cluster_;
  std::vector<std::size_t> best_;
  std::vector<std::size_t> seeds_;  // at last the medoids
  Doubles members_;
  Doubles pairs_;
  Doubles within_;  // pairs_ / members_: the scatter
  Doubles share_;   // 1 / (members_ + 1)
  Doubles sums_;    // [heads, clusters]
};

}  // namespace

void cluster(const HeadPoints& points, std::size_t clusters, std::int32_t* representative) {
  if (clusters == 0) throw std::invalid_argument("clusters are 0, needs 1 or more");
  auto size = points.heads * points.features;
  for (std::size_t i = 0; i < points.batch * size; ++i) {
    if (std::isfinite(points.data[i])) continue;
    throw std::invalid_argument("points of request " + std::to_string(i / size) + ", head " +
                                std::to_string(i % size / points.features) + " have " +
                                std::to_string(points.data[i]) + ", needs finite numbers");
  }
  if (points.heads == 0) return;
  Clusters found(points.heads, std::min(clusters, points.heads));
  for (std::size_t b = 0; b < points.batch; ++b) {
    found.find(points.data + b * size, points.features, representative + b * points.heads);
  }
}

}  // namespace headrace::attention
