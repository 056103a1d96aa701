"""Steps of learning-rate decay, apart from smooth schedules.

Algorithm 1 calls every mark critical after which the rate falls. Under a cosine that is every mark.
Here a fall is a *step* only if it is both large, and larger than the schedule's own trend predicts:

    log(r[t] / r[t+1]) >= log(1.5)  and  > 2.5 * the larger of the two falls before it

- 1.5: rates that step down are divided by 2, 5 or 10 in practice. A cosine over five marks or more
  falls by less than that where its falls still grow fast (its second is at most log(1.39)).
- 2.5: falls of a rate ~ (T-t)^p grow by log(2) / log(3/2) = 1.71 at most between two marks, at the
  very end, whatever p is: linear and polynomial schedules, and the end of a cosine (p = 2). For a
  cosine over five marks the factor is 2.01, and less for more marks. A fall to zero is no
  step: with it training ends.
- Two falls: a schedule in stairs of single marks (0.5 per epoch) is a trend from its second fall.
"""

import math
from collections.abc import Sequence

LARGE = math.log(1.5)
GROWTH = 2.5


def falls_between(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return log(before / after) for each parameter group; 0 where a rate is zero or rises."""
    if len(before) != len(after):
        return [0.0] * len(after)
    return [
        max(0.0, math.log(old / new)) if old > 0 and new > 0 else 0.0
        for old, new in zip(before, after, strict=True)
    ]


def is_decay_step(falls: Sequence[float], recent: Sequence[Sequence[float]]) -> bool:
    """Return whether a fall is a step of decay in any parameter group.

    Parameters
    ----------
    falls : of the logarithm of each group's rate, at this mark.
    recent : the same at the one or two marks before; may be empty.
    """
    return any(
        fall >= LARGE
        and all(fall > GROWTH * old[group] for old in recent if len(old) == len(falls))
        for group, fall in enumerate(falls)
    )
