"""Batches of chunks: a dynamic program for each link, where the exact model is too large.

A link is given its chunks in order; chunk k is available at ``release[k]``, and after its arrival
``tail[k]`` must still happen. Batches are runs of that order. For a makespan T, the earliest time
at which the first k chunks can have left is found by dynamic programming over the last batch; the
least T is found by bisection.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.collectives.plan.generators.taccl.work import WorkTimeline

_STEPS = 24


def best_batches(
    release: np.ndarray, tail: np.ndarray, *, alpha: float, beta: float
) -> list[tuple[int, int]]:
    """Return the batches (first, end) that minimise the latest arrival plus tail.

    Parameters
    ----------
    release, tail : (chunks,) us, in the order of the link.
    alpha, beta : us of a message, and of each chunk in it.
    """
    count = len(release)
    high = _makespan(_single(count), release, tail, alpha, beta)
    best = _single(count)
    one_batch = [(0, count)]
    if _makespan(one_batch, release, tail, alpha, beta) < high:
        best, high = one_batch, _makespan(one_batch, release, tail, alpha, beta)
    low = float((release + tail).max(initial=0.0)) + alpha + beta
    for _ in range(_STEPS):
        if high - low <= 1e-6 * max(high, 1.0):
            break
        middle = (low + high) / 2
        batches = _within(release, tail, alpha, beta, middle)
        if batches is None:
            low = middle
        else:
            best, high = batches, min(middle, _makespan(batches, release, tail, alpha, beta))
    return best


def _single(count: int) -> list[tuple[int, int]]:
    return [(at, at + 1) for at in range(count)]


def _makespan(
    batches: Sequence[tuple[int, int]],
    release: np.ndarray,
    tail: np.ndarray,
    alpha: float,
    beta: float,
) -> float:
    free, last = 0.0, 0.0
    for first, end in batches:
        begin = max(free, float(release[first:end].max()))
        free = begin + alpha + beta * (end - first)
        last = max(last, free + float(tail[first:end].max()))
    return last


def _within(
    release: np.ndarray, tail: np.ndarray, alpha: float, beta: float, limit: float
) -> list[tuple[int, int]] | None:
    """Return batches that meet `limit`, each prefix as early as can be; None if there are none."""
    count = len(release)
    done = np.full(count + 1, np.inf)
    done[0] = 0.0
    last = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        # over all first chunks of the last batch: the latest release and tail within it
        latest = np.maximum.accumulate(release[end - 1 :: -1] if end < count else release[::-1])
        longest = np.maximum.accumulate(tail[end - 1 :: -1] if end < count else tail[::-1])
        first = np.arange(end - 1, -1, -1)
        arrive = np.maximum(done[first], latest) + alpha + beta * (end - first)
        arrive[arrive + longest > limit + 1e-9] = np.inf
        at = int(np.argmin(arrive))
        done[end], last[end] = arrive[at], first[at]
    if not np.isfinite(done[count]):
        return None
    batches: list[tuple[int, int]] = []
    end = count
    while end:
        batches.append((int(last[end]), end))
        end = int(last[end])
    return batches[::-1]


def propose(timeline: WorkTimeline, crossing: np.ndarray) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield ways to batch the messages on `crossing` links, each a list of batches of messages.

    The dynamic program for each link by itself; runs of 2, 4, 8, ... chunks; all that a link has.
    """
    work = timeline.work
    lanes = lanes_of(timeline, crossing)
    longest = max((len(lane) for lane in lanes), default=0)
    if longest < 2:
        return
    lats = work.lats
    ends = [start + lat for start, lat in zip(timeline.start_us, lats, strict=True)]
    _, onward = work.paths
    costs = work.costs
    rows: list[list[int]] = []
    for lane in lanes:
        release = np.array([max((ends[b] for b in work.before[at]), default=0.0) for at in lane])
        tail = np.array([onward[at] - lats[at] for at in lane])
        link = work.link[lane[0]]
        batches = best_batches(
            release, tail, alpha=float(costs.alpha[link]), beta=float(costs.beta[link])
        )
        rows += [lane[first:end] for first, end in batches if end - first > 1]
    if rows:
        yield "program", rows
    size = 2
    while size < 2 * longest:
        cut = [lane[at : at + size] for lane in lanes for at in range(0, len(lane), size)]
        yield f"runs of {min(size, longest)}", [row for row in cut if len(row) > 1]
        size *= 2


def lanes_of(timeline: WorkTimeline, crossing: np.ndarray) -> list[list[int]]:
    """Return the messages on each of the `crossing` links, in order of time."""
    lanes: dict[int, list[int]] = {}
    for at in timeline.order:
        link = timeline.work.link[at]
        if crossing[link] and len(timeline.work.chunks[at]) == 1:
            lanes.setdefault(link, []).append(at)
    return [lanes[link] for link in sorted(lanes)]
