#include "synthesis/problem.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

namespace headrace::synthesis {

void check(const Network& network) {
  auto links = network.src.size();
  auto rank_ok = [&](std::int32_t rank) { return rank >= 0 && rank < network.ranks; };
  for (std::size_t link = 0; link < links; ++link) {
    if (!rank_ok(network.src[link]) || !rank_ok(network.dst[link])) {
      throw SearchError("link " + std::to_string(link) + " joins ranks out of range");
    }
    if (!(network.alpha[link] >= 0) || !(network.beta[link] > 0)) {
      throw SearchError("link " + std::to_string(link) + " has a cost that is not positive");
    }
  }
  for (auto link : network.shared.item) {
    if (link < 0 || link >= static_cast<std::int32_t>(links)) {
      throw SearchError("a shared capacity names link " + std::to_string(link) +
                        ", which does not exist");
    }
  }
}

Resources::Resources(const Network& network) {
  auto count = static_cast<std::int32_t>(network.src.size());
  std::vector<std::vector<Use>> uses(count);
  for (std::int32_t link = 0; link < count; ++link) {
    links.item.push_back(link);
    links.close();
    uses[link].push_back({link, network.beta[link]});
  }
  for (std::size_t shared = 0; shared < network.shared.size(); ++shared) {
    auto resource = static_cast<std::int32_t>(links.size());
    for (auto link : network.shared[shared]) {
      links.item.push_back(link);
      uses[link].push_back({resource, network.shared_beta[shared]});
    }
    links.close();
  }
  first_.push_back(0);
  for (auto& mine : uses) {
    uses_.insert(uses_.end(), mine.begin(), mine.end());
    first_.push_back(static_cast<std::int64_t>(uses_.size()));
    // Of equally slow ones the last: a shared capacity predicts the load better than the link.
    auto worst = mine.front();
    for (auto& use : mine) {
      if (use.beta >= worst.beta) worst = use;
    }
    slowest.push_back(worst.beta);
    narrow.push_back(worst.resource);
  }
}

namespace {

// Classes of equivalent chunks, of one origin and the same targets: a symmetry maps the k-th of a
// class to the k-th of the image.
class ChunkClasses {
 public:
  ChunkClasses(const Deliveries& deliveries, int ranks) : deliveries_(deliveries), ranks_(ranks) {
    for (std::size_t chunk = 0; chunk < deliveries.origin.size(); ++chunk) {
      auto& mine = members_[key(static_cast<std::int32_t>(chunk), nullptr)];
      index_.push_back(mine.size());
      mine.push_back(static_cast<std::int32_t>(chunk));
    }
  }

  std::int32_t image(std::int32_t chunk, const std::int32_t* permutation) const {
    auto found = members_.find(key(chunk, permutation));
    if (found == members_.end() || found->second.size() <= index_[chunk]) {
      throw SearchError("a symmetry maps chunk " + std::to_string(chunk) +
                        " on one that the collective does not have");
    }
    return found->second[index_[chunk]];
  }

 private:
  using Key = std::pair<std::int32_t, std::vector<std::int32_t>>;

  Key key(std::int32_t chunk, const std::int32_t* permutation) const {
    auto at = [&](std::int32_t rank) { return permutation ? permutation[rank] : rank; };
    Key made{at(deliveries_.origin[chunk]), {}};
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      if (deliveries_.target[static_cast<std::size_t>(chunk) * ranks_ + rank]) {
        made.second.push_back(at(rank));
      }
    }
    std::sort(made.second.begin(), made.second.end());
    return made;
  }

  const Deliveries& deliveries_;
  int ranks_;
  std::map<Key, std::vector<std::int32_t>> members_;
  std::vector<std::size_t> index_;
};

bool equal_cost(double a, double b) {
  return std::abs(a - b) <= 1e-9 * (std::abs(a) + std::abs(b));
}

}  // namespace

Symmetry::Symmetry(const Network& network, const Resources& resources,
                   const Deliveries& deliveries) {
  auto ranks = network.ranks;
  auto links = static_cast<std::int32_t>(network.src.size());
  auto chunks = static_cast<std::int32_t>(deliveries.origin.size());
  first_link.resize(links);
  std::iota(first_link.begin(), first_link.end(), 0);
  clash.assign(links, 0);
  if (deliveries.symmetry.empty()) return;
  elements = static_cast<int>(deliveries.symmetry.size() / ranks);
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> index;
  for (std::int32_t i = 0; i < links; ++i) index[{network.src[i], network.dst[i]}] = i;
  ChunkClasses classes(deliveries, ranks);
  link.reserve(static_cast<std::size_t>(elements) * links);
  chunk.reserve(static_cast<std::size_t>(elements) * chunks);
  for (int element = 0; element < elements; ++element) {
    auto* image = deliveries.symmetry.data() + static_cast<std::size_t>(element) * ranks;
    std::vector<bool> seen(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      if (image[rank] < 0 || image[rank] >= ranks || seen[image[rank]]) {
        throw SearchError("element " + std::to_string(element) +
                          " of the symmetry is no permutation of the ranks");
      }
      seen[image[rank]] = true;
    }
    for (std::int32_t i = 0; i < links; ++i) {
      auto found = index.find({image[network.src[i]], image[network.dst[i]]});
      if (found == index.end() || !equal_cost(network.alpha[found->second], network.alpha[i]) ||
          !equal_cost(resources.slowest[found->second], resources.slowest[i])) {
        throw SearchError("element " + std::to_string(element) + " of the symmetry maps link " +
                          std::to_string(i) + " on none or on one of other cost");
      }
      link.push_back(found->second);
      first_link[found->second] = std::min(first_link[found->second], first_link[i]);
    }
    for (std::int32_t c = 0; c < chunks; ++c) chunk.push_back(classes.image(c, image));
  }
  for (std::int32_t i = 0; i < links; ++i) {
    for (int element = 0; element < elements; ++element) {
      auto moved = link[static_cast<std::size_t>(element) * links + i];
      first_link[moved] = std::min(first_link[moved], i);
    }
  }
  std::vector<std::int32_t> user(resources.count(), -1);
  for (std::int32_t i = 0; i < links; ++i) {
    if (first_link[i] != i) continue;
    std::vector<std::int32_t> touched;
    bool clashes = false;
    for (int element = 0; element < elements; ++element) {
      auto moved = link[static_cast<std::size_t>(element) * links + i];
      for (auto& use : resources.of(moved)) {
        auto& holder = user[use.resource];
        clashes |= holder >= 0 && holder != moved;
        holder = moved;
        touched.push_back(use.resource);
      }
    }
    for (auto resource : touched) user[resource] = -1;
    for (int element = 0; element < elements && clashes; ++element) {
      clash[link[static_cast<std::size_t>(element) * links + i]] = 1;
    }
  }
}

}  // namespace headrace::synthesis
