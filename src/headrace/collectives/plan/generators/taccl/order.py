"""Ordering by heuristics (TACCL 5.5.2): all of them, forwards and backwards, and the best kept.

Two rules choose among chunks that contend for a link: *longest path from now first* and
*shortest path until now first*; each breaks the ties of the other. Either the link that is free
first is scheduled first, or the rule alone decides. Messages are scheduled in the order of the
paths, or from their ends backwards. A chunk's time is kept at each rank, and sends that two paths
of a chunk share are scheduled once.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from headrace.collectives.plan.generators.taccl.work import Work, WorkTimeline, list_schedule

HEURISTICS = tuple(
    f"{rule}-{way}-{lead}"
    for rule in ("longest", "shortest")
    for way in ("forward", "backward")
    for lead in ("time", "rule")
)
"""Names of all combinations."""


def order_messages(
    work: Work,
    *,
    start: Sequence[float] | None = None,
    rules: Sequence[str] = HEURISTICS,
    enough_us: float = 0.0,
    interrupt: Callable[[], bool] | None = None,
) -> tuple[WorkTimeline, dict[str, float]]:
    """Order `work` by every heuristic; return the best timeline and the time of each (us).

    Parameters
    ----------
    start : starting times of an earlier plan; their order is tried too, as "given".
    enough_us : lower bound; a timeline that attains it ends the search.
    interrupt : polled between heuristics, once there is a result.
    """
    total_us_of: dict[str, float] = {}
    best: WorkTimeline | None = None
    for name, timeline in _all(work, start, rules):
        total_us_of[name] = timeline.total_us
        if best is None or timeline.total_us < best.total_us - 1e-9:
            best = timeline
        if best.total_us <= enough_us * (1 + 1e-9) or (interrupt is not None and interrupt()):
            break
    assert best is not None
    return best, total_us_of


def _all(
    work: Work, start: Sequence[float] | None, rules: Sequence[str]
) -> Iterator[tuple[str, WorkTimeline]]:
    if start is not None:
        yield "given", list_schedule(work, start)
    until, onward = work.paths
    for name in rules:
        rule, direction, lead = name.split("-")
        if direction == "forward":
            key = _ranks(onward, until) if rule == "longest" else _ranks(until, onward, True)
            timeline = list_schedule(work, key, by_time=lead == "time")
            if lead == "rule":  # the same order, but no link stands idle for it
                timeline = list_schedule(work, timeline.start_us)
        else:
            # Backwards in time the path from now is the path until now.
            after_us = [onward_us - lat for onward_us, lat in zip(onward, work.lats, strict=True)]
            key = _ranks(until, after_us) if rule == "longest" else _ranks(after_us, until, True)
            timeline = list_schedule(work.reversed(), key, by_time=lead == "time")
            ends = (s + lat for s, lat in zip(timeline.start_us, work.lats, strict=True))
            timeline = list_schedule(work, [-end for end in ends])
        yield name, timeline


def _ranks(first: Sequence[float], second: Sequence[float], short: bool = False) -> list[float]:
    """Rank messages by `first` falling, ties by `second` rising; `short`: the other way round."""
    sign = 1.0 if short else -1.0
    columns = (-sign * np.asarray(second), sign * np.asarray(first))
    rounded = tuple(np.round(column, 6) for column in columns)
    order = np.lexsort(rounded)
    ranks = np.empty(len(order))
    ranks[order] = np.arange(len(order))
    return ranks.tolist()
