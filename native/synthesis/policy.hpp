// Random parameters of one construction.
#pragma once

#include "random.hpp"

namespace headrace::synthesis {

struct Policy {
  // Weights of the order of free links.
  float need;        // receivers with most left to receive relative to their capacity
  float scarce;      // links with few qualifying chunks
  float slow;        // slow links (below 0: fast ones)
  float link_noise;  // random
  // Weights of the order of qualifying chunks.
  float rare;         // few ranks have it
  float inward;       // few of the destination's neighbours could deliver it
  float outward;      // many of the destination's neighbours lack it
  float tail;         // a long path is still ahead
  float chunk_noise;  // random
  // Message size.
  float share_left;        // limit: fraction of the chunks still expected over the link
  float share_held;        // limit: fraction of the qualifying chunks
  float alpha_ratio;       // at least this many alphas of transfer time, if that much is left
  float round;             // limit: time of this many chunks on the fastest link; 0: none
  float wait;              // idle instead of a message shorter than this many alphas
  bool force_alpha_ratio;  // alpha_ratio overrides share_left
  // Exclusions.
  float skip_ratio;     // slow links, if others deliver the rest in this fraction of a chunk's time
  bool once_per_group;  // into a group only chunks that it lacks
  bool skip_slower;     // links that other paths match in arrival time
  float slow_skip;      // probability of skipping a slow link until the next arrival

  static Policy drawn(Random& random, float batch_share) {
    Policy made{};
    made.mutate(random, batch_share, 1.0F);
    return made;
  }

  // Redraws each parameter with probability `chance`.
  void mutate(Random& random, float batch_share, float chance) {
    auto redraw = [&](float& value, const auto& values) {
      if (random.unit() < chance) value = random.one_of(values);
    };
    auto redraw_flag = [&](bool& flag, const auto& values) {
      if (random.unit() < chance) flag = random.one_of(values) > 0;
    };
    static constexpr float weights[] = {0, 0.3F, 1, 2};
    static constexpr float chances[] = {0.01F, 0.1F, 0.3F, 1};
    static constexpr float shares_left[] = {1, 0.95F, 0.9F, 0.8F, 0.65F, 0.5F, 0.35F, 0.25F};
    static constexpr float shares_held[] = {1, 1, 1, 0.5F, 0.34F, 0.25F, 0.17F, 0.125F};
    static constexpr float ratios[] = {0, 0, 2, 5, 10, 20, 40};
    static constexpr float rounds[] = {0, 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    static constexpr float waits[] = {0, 0, 0, 1, 3, 8, 1000};
    static constexpr float skip_ratios[] = {0, 0.7F, 1, 1, 1.3F};
    static constexpr float seldom[] = {0, 0, 0, 1};
    static constexpr float slow_skips[] = {0, 0, 0, 0, 0.1F, 0.3F, 0.5F, 0.8F};
    static constexpr float slowness[] = {-1, -0.3F, 0, 0.3F, 1};
    static constexpr float mostly[] = {1, 1, 1, 1, 1, 1, 1, 0};
    redraw(need, weights);
    redraw(scarce, weights);
    redraw(slow, slowness);
    redraw(link_noise, chances);
    redraw(rare, weights);
    redraw(inward, weights);
    redraw(outward, weights);
    redraw(tail, weights);
    redraw(chunk_noise, chances);
    if (batch_share > 0) {
      float share = share_left / batch_share;
      redraw(share, shares_left);
      share_left = share * batch_share;
      redraw(share_held, shares_held);
      redraw(alpha_ratio, ratios);
      redraw(round, rounds);
      redraw(wait, waits);
      redraw_flag(force_alpha_ratio, seldom);
    }
    redraw(skip_ratio, skip_ratios);
    redraw_flag(once_per_group, mostly);
    redraw_flag(skip_slower, seldom);
    redraw(slow_skip, slow_skips);
  }
};

}  // namespace headrace::synthesis
