// Clusters of heads: planted ones, all partitions of few heads, equal rows, permutations.
#include "attention/clusters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/testing.hpp"
#include "check.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::attention;
using attention::testing::Doubles;
using attention::testing::Floats;
using attention::testing::kInfinity;
using attention::testing::kNan;
using attention::testing::normal;
using attention::testing::normals;

namespace {

using Heads = std::vector<std::int32_t>;

Heads clustered(const Floats& points, std::size_t batch, std::size_t heads, std::size_t clusters) {
  Heads result(batch * heads, -1);
  cluster({points.data(), batch, heads, points.size() / (batch * heads)}, clusters, result.data());
  return result;
}

double square(const Floats& points, std::size_t features, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t f = 0; f < features; ++f) {
    auto difference = static_cast<double>(points[a * features + f] - points[b * features + f]);
    sum += difference * difference;
  }
  return sum;
}

// The sum over clusters of squared distances to the mean.
template <class Labels>
double scatter(const Floats& points, const Labels& labels) {
  auto heads = labels.size();
  auto features = points.size() / heads;
  double sum = 0;
  for (std::size_t i = 0; i < heads; ++i) {
    auto members = static_cast<double>(std::count(labels.begin(), labels.end(), labels[i]));
    for (std::size_t j = 0; j < i; ++j) {
      if (labels[i] == labels[j]) sum += square(points, features, i, j) / members;
    }
  }
  return sum;
}

// Representatives represent themselves, are as many as asked for, and are medoids.
void check_heads(const Floats& points, const Heads& heads, std::size_t clusters) {
  auto features = points.size() / heads.size();
  std::set<std::int32_t> representatives(heads.begin(), heads.end());
  CHECK(representatives.size() == std::min(clusters, heads.size()));
  auto sum_of = [&](std::size_t member, std::int32_t representative) {
    double sum = 0;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      if (heads[i] == representative) sum += square(points, features, i, member);
    }
    return sum;
  };
  for (std::size_t i = 0; i < heads.size(); ++i) {
    auto representative = static_cast<std::size_t>(heads[i]);
    CHECK(representative < heads.size() && heads[representative] == heads[i]);
    CHECK(sum_of(representative, heads[i]) <= sum_of(i, heads[i]) * 1.000001);
  }
}

// Heads around centers, which are farther apart than clusters are wide; `width` 0: copied rows.
Floats planted(Random& random, const Heads& center_of, std::size_t features, float width) {
  auto centers = normals(random, center_of.size() * features);
  Floats points;
  for (auto center : center_of) {
    for (std::size_t f = 0; f < features; ++f) {
      auto at = centers[static_cast<std::size_t>(center) * features + f];
      points.push_back(at + width * normal(random));
    }
  }
  return points;
}

void test_planted() {
  Random random(1, 0);
  for (int round = 0; round < 200; ++round) {
    auto heads = static_cast<std::size_t>(8 + random.below(33));
    auto clusters = static_cast<std::size_t>(1 + random.below(8));
    Heads center_of(heads);
    for (std::size_t i = 0; i < heads; ++i) {
      auto center = i < clusters ? static_cast<int>(i) : random.below(static_cast<int>(clusters));
      center_of[i] = center;
    }
    auto points = planted(random, center_of, 25, round % 2 == 0 ? 0.0F : 0.05F);
    auto found = clustered(points, 1, heads, clusters);
    check_heads(points, found, clusters);
    for (std::size_t i = 0; i < heads; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        CHECK((center_of[i] == center_of[j]) == (found[i] == found[j]));
      }
    }
    // Of copied rows the first represents the others.
    if (round % 2 == 0) {
      for (std::size_t i = 0; i < heads; ++i) CHECK(found[i] <= static_cast<std::int32_t>(i));
    }
    // Permuted heads have permuted clusters.
    std::vector<std::size_t> order(heads);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = heads; i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<int>(i)))]);
    }
    Floats permuted;
    for (auto head : order) {
      auto from = points.begin() + static_cast<std::ptrdiff_t>(head * 25);
      permuted.insert(permuted.end(), from, from + 25);
    }
    auto again = clustered(permuted, 1, heads, clusters);
    for (std::size_t i = 0; i < heads; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        CHECK((again[i] == again[j]) == (found[order[i]] == found[order[j]]));
      }
    }
  }
}

// Of few heads, the least scatter of all partitions.
void test_all_partitions() {
  Random random(2, 0);
  constexpr std::size_t kHeads = 8;
  constexpr int kRounds = 60;
  int optimal = 0;
  for (int round = 0; round < kRounds; ++round) {
    auto clusters = static_cast<std::size_t>(2 + round % 3);
    auto points = normals(random, kHeads * 3);
    double least = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> labels(kHeads);
    for (;;) {
      least = std::min(least, scatter(points, labels));
      std::size_t i = 0;
      while (i < kHeads && ++labels[i] == clusters) labels[i++] = 0;
      if (i == kHeads) break;
    }
    auto found = clustered(points, 1, kHeads, clusters);
    check_heads(points, found, clusters);
    auto sum = scatter(points, found);
    CHECK(sum >= least * 0.999999 && sum <= least * 1.1);
    optimal += sum <= least * 1.000001;
  }
  CHECK(optimal >= kRounds * 9 / 10);
}

void test_equal_rows() {
  for (auto value : {0.0F, 0.2F, 1e30F}) {
    for (std::size_t clusters : {1, 2, 5, 8, 9}) {
      Floats points(8 * 25, value);
      check_heads(points, clustered(points, 1, 8, clusters), clusters);
      // Two different rows among them.
      for (std::size_t f = 0; f < 25; ++f) points[3 * 25 + f] = 0.1F * static_cast<float>(f);
      auto found = clustered(points, 1, 8, clusters);
      check_heads(points, found, clusters);
      if (clusters > 1) CHECK(std::count(found.begin(), found.end(), 3) == 1);
    }
  }
}

// One request's clusters do not depend on those beside it; no request, head or feature.
void test_batches() {
  Random random(3, 0);
  for (std::size_t features : {0, 1, 2, 25, 64}) {
    auto points = normals(random, 3 * 10 * features);
    Heads all(30, -1);
    cluster({points.data(), 3, 10, features}, 4, all.data());
    for (std::size_t b = 0; b < 3; ++b) {
      Heads found(10, -1);
      cluster({points.data() + b * 10 * features, 1, 10, features}, 4, found.data());
      auto* from = all.data() + b * 10;
      CHECK(std::equal(found.begin(), found.end(), from));
    }
  }
  cluster({nullptr, 0, 10, 5}, 2, nullptr);
  cluster({nullptr, 2, 0, 5}, 2, nullptr);
}

void test_refused() {
  Floats points(2 * 4 * 5);
  Heads heads(8);
  HeadPoints from{points.data(), 2, 4, 5};
  CHECK(thrown<std::invalid_argument>([&] { cluster(from, 0, heads.data()); }) ==
        "clusters are 0, needs 1 or more");
  for (auto value : {kNan, kInfinity, -kInfinity}) {
    points[29] = value;
    CHECK(thrown<std::invalid_argument>([&] { cluster(from, 2, heads.data()); }) ==
          "points of request 1, head 1 have " + std::to_string(value) + ", needs finite numbers");
  }
}

}  // namespace

int main() {
  test_planted();
  test_all_partitions();
  test_equal_rows();
  test_batches();
  test_refused();
}
