// The random choices that one construction is made by.
#pragma once

#include "search/random.hpp"

namespace headrace::search {

struct Policy {
  // Which of the free links goes first.
  float need;      // receivers that have most left to receive over their capacity
  float scarce;    // links for which few chunks qualify
  float slow;      // slow links (below 0: fast ones)
  float disorder;  // chance
  // Which of the qualifying chunks.
  float rare;     // few have it
  float inward;   // few of the destination's neighbours could bring it
  float outward;  // many of the destination's neighbours lack it
  float tail;     // much of its way is still ahead
  float taste;    // chance
  // How many.
  float share_left;   // of what the link is still expected to carry
  float share_held;   // of what qualifies now
  float alpha_ratio;  // beta's part of a message is at least this many alphas, if that much is left
  float round;        // at most what the fastest link carries of so many chunks; 0: no limit
  float wait;         // leave a link idle if a message would be shorter than this many alphas
  bool insistent;     // alpha_ratio holds even against share_left
  // What to leave alone.
  float patience;  // not over a slow link what the others bring in this fraction of the time
  bool strict;     // into a group only what the group lacks
  bool direct;     // not over a link what other ways could bring no later
  float sloth;     // chance that a slow link is passed over until something arrives

  static Policy drawn(Random& random, float batch_share) {
    Policy made{};
    made.mutate(random, batch_share, 1.0F);
    return made;
  }

  // Draw each choice anew with the given chance.
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
    static constexpr float patiences[] = {0, 0.7F, 1, 1, 1.3F};
    static constexpr float seldom[] = {0, 0, 0, 1};
    static constexpr float sloths[] = {0, 0, 0, 0, 0.1F, 0.3F, 0.5F, 0.8F};
    static constexpr float slowness[] = {-1, -0.3F, 0, 0.3F, 1};
    static constexpr float mostly[] = {1, 1, 1, 1, 1, 1, 1, 0};
    redraw(need, weights);
    redraw(scarce, weights);
    redraw(slow, slowness);
    redraw(disorder, chances);
    redraw(rare, weights);
    redraw(inward, weights);
    redraw(outward, weights);
    redraw(tail, weights);
    redraw(taste, chances);
    if (batch_share > 0) {
      float share = share_left / batch_share;
      redraw(share, shares_left);
      share_left = share * batch_share;
      redraw(share_held, shares_held);
      redraw(alpha_ratio, ratios);
      redraw(round, rounds);
      redraw(wait, waits);
      redraw_flag(insistent, seldom);
    }
    redraw(patience, patiences);
    redraw_flag(strict, mostly);
    redraw_flag(direct, seldom);
    redraw(sloth, sloths);
  }
};

}  // namespace headrace::search
