"""Freedom from data races: every two conflicting accesses are ordered, mostly at their own rank.

Two accesses of a slot conflict if one of them writes it (a receive that reduces reads and writes).
They must be ordered by lanes and dependencies of their own rank. An order through messages by way
of other ranks counts only where every message has bytes (`messages`): headrace's executor sends
nothing for a chunk that a short vector leaves empty. As ordering is transitive for each byte, it is
enough to compare every access with the slot's last writer before it, and a write with the readers
since.

Order of bytes
--------------
A step *finishes before* another if a path leads there on which one edge at least makes the later
step wait for all of the earlier one: the next step of a lane, or a dependency between different
ranges. Streaming edges before it keep this true, as their later step ends after their earlier
one does; streaming edges after it as well, as their later step does not begin before.

A path of streaming edges is weaker: byte k of the last step comes after byte k of the first.
All their ranges are equally long. So two accesses are ordered if they cover *the same* range (byte
k is then the same byte of the slot), and may race if the ranges are shifted against each other.
This is what makes it sound that a chunk is reduced and forwarded, or overwritten, while the rest
of it still arrives: along any chain, byte k only ever follows byte k.

"Both cover exactly the same slots" can be read narrowly (of `slot`) or widely (of `src_slot` too).
An edge counts as streaming if either reading makes it so, which gives it the least force.

Short paths first
-----------------
Nearly always a path of at most one dependency orders two accesses: along the later one's lane
backwards to a step that waits for the earlier one, or for a later step of its lane. These are
found in whole columns. Only a rank where they do not order all pairs is checked step by step with
vector clocks (`clocks`), which cover all paths.
"""

import numpy as np

from headrace.collectives.plan.verify.clocks import Clocks, may_stream
from headrace.collectives.plan.verify.history import History
from headrace.collectives.plan.verify.structure import Structure, fail
from headrace.errors import VerificationError

_MOST_CLOCK_ENTRIES = 1 << 25
"""Steps and dependencies of one rank times its lanes: some 256 MB, and about a second."""


def check_races(
    s: Structure, order: np.ndarray, history: History, *, messages: bool = False
) -> None:
    """Check the ranks of `history`.

    Parameters
    ----------
    order : all steps, each after all that it waits for.
    messages : an order through messages counts.

    Raises
    ------
    VerificationError : naming two steps that can touch a slot at the same time.
    """
    later = np.concatenate([np.flatnonzero(history.before >= 0), history.after[history.after >= 0]])
    earlier = np.concatenate(
        [history.before[history.before >= 0], np.flatnonzero(history.after >= 0)]
    )
    alike = history.start[earlier] == history.start[later]
    open_ = ~_ordered(s, history.step[earlier], history.step[later], alike)
    ranks = np.unique(history.rank[later[open_]])
    if not len(ranks):
        return
    mine = order[np.isin(s.rank[order], ranks)]
    mine = mine[np.argsort(s.rank[mine], kind="stable")]
    for rank, begin, end in zip(
        ranks.tolist(),
        np.searchsorted(s.rank[mine], ranks).tolist(),
        np.searchsorted(s.rank[mine], ranks, side="right").tolist(),
        strict=True,
    ):
        _check_work(s, rank, end - begin)
        try:
            Clocks(s, mine[begin:end]).check()
        except VerificationError:
            if not messages or len(order) * len(s.lane_rank) > _MOST_CLOCK_ENTRIES:
                raise
            Clocks(s, order, messages=True).check()
            return


def _check_work(s: Structure, rank: int, steps: int) -> None:
    """Fail if the rank would take more time and memory than its file's size justifies."""
    first = int(np.searchsorted(s.rank, rank))
    waits = int(s.first_wait[first + steps] - s.first_wait[first])
    lanes = int(np.count_nonzero(s.lane_rank == rank))
    if (steps + waits) * lanes > _MOST_CLOCK_ENTRIES:
        fail(
            f"rank {rank}: {steps} steps with {waits} dependencies in {lanes} lanes are too many "
            "to follow dependencies through several lanes; needs at most "
            f"{_MOST_CLOCK_ENTRIES // lanes} steps and dependencies there, or ones that order "
            "conflicting steps directly"
        )


def _ordered(s: Structure, on: np.ndarray, step: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Return whether short paths order `on` before `step`, pair by pair.

    Parameters
    ----------
    alike : whether the two accesses begin at the same slot.
    """
    in_lane_order = (s.lane[on] == s.lane[step]) & (s.position[on] < s.position[step])
    left = np.flatnonzero(~in_lane_order)
    on, step, alike = on[left], step[left], alike[left]
    low, high = int(s.rank[step].min(initial=0)), int(s.rank[step].max(initial=-1)) + 1
    first, end = np.searchsorted(s.rank, (low, high))
    first, end = s.first_wait[[first, end]]
    if first == end or not len(left):
        return in_lane_order
    waiting, awaited = s.waiting[first:end], s.on[first:end]
    # Dependencies by the two lanes, then by the waiting step; how far each pair has waited.
    lanes, steps = len(s.lane_rank), len(s.lane)
    pair = s.lane[waiting] * lanes + s.lane[awaited]
    by_pair = np.lexsort((awaited, waiting, pair))
    pair, waiting, awaited = pair[by_pair], waiting[by_pair], awaited[by_pair]
    pairs, place = np.unique(pair, return_inverse=True)
    until = np.maximum.accumulate(place * steps + awaited)
    key = place * steps + waiting
    # The last dependency before `step` in its lane (all of that is over when it begins) ...
    lane_pairs = s.lane[step] * lanes + s.lane[on]
    at = np.minimum(np.searchsorted(pairs, lane_pairs), len(pairs) - 1)
    dependent = pairs[at] == lane_pairs
    goal = at * steps + on
    row = np.searchsorted(key, at * steps + step)
    over = dependent & (row > 0) & (until[row - 1] >= goal)
    # ... and its own, which may let it follow byte by byte.
    row = np.searchsorted(key, at * steps + step, side="right") - 1
    own = dependent & (row >= 0) & (key[row] == at * steps + step)
    waits_for = np.where(own, awaited[row], -1)
    streams = may_stream(s, np.maximum(waits_for, 0), step)
    over |= own & (waits_for - streams >= on)
    over |= own & (waits_for >= on) & alike
    in_lane_order[left] = over
    return in_lane_order
