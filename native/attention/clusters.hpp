// Clusters of heads that look at the same tokens (CHAI, 6.2.3), by k-means over the probabilities
// of a request's first tokens.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::attention {

struct HeadPoints {
  const float* data;  // [batch, heads, features], finite
  std::size_t batch;
  std::size_t heads;
  std::size_t features;
};

// Writes [batch, heads]: the head that represents each, itself for a representative. Each request
// has min(clusters, heads) representatives, those of equal rows included; a representative is its
// cluster's medoid: the member with the least sum of squared distances to the members. The same
// points have the same clusters, on every machine with the same double arithmetic. Throws
// std::invalid_argument.
void cluster(const HeadPoints& points, std::size_t clusters, std::int32_t* representative);

}  // namespace headrace::attention
