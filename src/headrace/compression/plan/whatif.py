"""Questions to the model: break-even bandwidths, needed compression, fewer exchanges."""

import math
from collections.abc import Callable

import numpy as np

from headrace.compression.plan.network import NetworkTimes
from headrace.compression.plan.step import StepTime, StepWork, alone_us, step_time
from headrace.units import FASTEST, SLOWEST

NEAR_LINEAR = 0.05
"""A step at most this much longer than with communication hidden is near-linear scaling."""

_MOST_COMPRESSION = 1e6
_POINTS_PER_DECADE = 4
_DIGITS = 1e-6


def break_even(
    work: StepWork, other: StepWork, network: NetworkTimes, *, decades: float = 3.0
) -> float | None:
    """Return the bandwidth at which two steps take the same time; None: nowhere near.

    Looks from `decades` below the network's bandwidth to as many above it; of several crossings
    the one at the highest bandwidth counts: above it the first step is the slower one, or the
    faster one, for good.

    Returns
    -------
    bytes per second, to six digits.
    """

    def lead(log_rate: float) -> float:
        there = network.at_bandwidth(math.exp(log_rate))
        return step_time(other, there).total_us - step_time(work, there).total_us

    middle = math.log(network.bandwidth_bytes_per_s)
    reach = decades * math.log(10)
    low, high = max(middle - reach, math.log(SLOWEST)), min(middle + reach, math.log(FASTEST))
    points = np.linspace(high, low, round(2 * decades * _POINTS_PER_DECADE) + 1).tolist()
    above, gain = points[0], lead(points[0])
    for point in points[1:]:
        difference = lead(point)
        if (difference > 0) != (gain > 0):
            return math.exp(_root(lead, point, above, difference, gain))
        above, gain = point, difference
    return None


def _root(
    function: Callable[[float], float], low: float, high: float, at_low: float, at_high: float
) -> float:
    """Return where a function changes its sign between two points, by the Illinois method.

    Every third step bisects: where the function bends, regula falsi alone can be slow.
    """
    positive, step = at_low > 0, 0
    while high - low > _DIGITS:
        step += 1
        middle = (low + high) / 2
        if step % 3 and math.isfinite(at_high - at_low):
            middle = (low * at_high - high * at_low) / (at_high - at_low)
            edge = min(_DIGITS, (high - low) / 4)  # from both sides, so that the interval shrinks
            middle = min(max(middle, low + edge), high - edge)
        at_middle = function(middle)
        if (at_middle > 0) == positive:
            low, at_low, at_high = middle, at_middle, at_high / 2
        else:
            high, at_high, at_low = middle, at_middle, at_low / 2
    return (low + high) / 2


def needed_compression(uncompressed: StepWork, network: NetworkTimes) -> float | None:
    """Return the compression that gives near-linear scaling (Figures 4.8 and 4.11).

    It is that of an ideal codec: one that takes no time and whose payloads are summed on the way.
    None if the latency of its exchanges alone is too long.
    """
    hidden = uncompressed.forward_us + uncompressed.gamma * uncompressed.backward_us
    limit = (1 + NEAR_LINEAR) * hidden

    def excess(log_ratio: float) -> float:
        work = uncompressed.scaled(exchanged=math.exp(-log_ratio))
        return step_time(work, network).total_us - limit

    most = math.log(_MOST_COMPRESSION)
    at_none, at_most = excess(0.0), excess(most)
    if at_none <= 0:
        return 1.0
    return math.exp(_root(excess, 0.0, most, at_none, at_most)) if at_most <= 0 else None


def fewer_exchanges(uncompressed: StepWork, network: NetworkTimes, local_steps: int) -> StepTime:
    """Return the mean step of a job that averages parameters once in `local_steps` steps.

    Post-local SGD and DiLoCo do so: the average is of float32 values, after the step, without
    overlap, and its cost is divided by the steps. Its effect on accuracy is not in the model.
    """
    alone = alone_us(uncompressed)
    sent = network.exchange_us("allreduce", uncompressed.exchanged_bytes) / local_steps
    return StepTime(total_us=alone + sent, codec_us=0.0, communication_us=sent, exposed_us=sent)
