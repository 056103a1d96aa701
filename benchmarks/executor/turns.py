"""Rivals timed in turn, in rounds, so that what disturbs the machine disturbs all alike."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.executor.launch import Group
from headrace.collectives.demand import Collective

KIB, MIB = 1 << 10, 1 << 20

_POOL_BYTES = 4 * MIB
_MOST_CALLS = 32
_TURN_BYTES = 80 * MIB
_QUICK_TURN_BYTES = 40 * MIB
_BURSTS = (3, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A collective of `bytes`, timed in turns of `bursts` bursts of `pool` calls."""

    collective: Collective
    bytes: int
    pool: int
    bursts: int

    @classmethod
    def of(cls, collective: Collective, size: int, *, quick: bool) -> "Case":
        """Return a case that takes a turn of some tenths of a second."""
        pool = max(1, min(_MOST_CALLS, _POOL_BYTES // size))
        fewest, most = _BURSTS
        bursts = (_QUICK_TURN_BYTES if quick else _TURN_BYTES) // (pool * size)
        return cls(
            collective=collective, bytes=size, pool=pool, bursts=max(fewest, min(most, bursts))
        )


def slowest_us(answers: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return, of every call, the slowest rank's time, from the ranks' answers."""
    return [max(times) for times in zip(*(answer["us"] for answer in answers), strict=True)]


def time_turn(group: Group, case: Case) -> list[float]:
    """Return the times (us) of one turn's calls, of the slowest rank each."""
    return slowest_us(
        group.ask(
            "time",
            collective=case.collective.value,
            bytes=case.bytes,
            pool=case.pool,
            bursts=case.bursts,
            warm_up=1,
        )
    )


def time_in_turns(groups: Mapping[str, Group], case: Case, rounds: int) -> dict[str, float]:
    """Return each rival's typical time (us): the median of all calls of all rounds.

    The order changes from round to round.
    """
    times: dict[str, list[float]] = {rival: [] for rival in groups}
    for number in range(rounds):
        for rival in rotated(list(groups), number):
            times[rival] += time_turn(groups[rival], case)
    return {rival: statistics.median(taken) for rival, taken in times.items()}


def rotated(names: Sequence[str], by: int) -> list[str]:
    """Return `names` beginning with the one at place `by` (modulo their number)."""
    start = by % len(names)
    return [*names[start:], *names[:start]]


def size_text(size: int) -> str:
    """Return a size as people write it."""
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def ratio(times: Mapping[str, float], over: str, under: str) -> float | None:
    """Return the time of `over` over that of `under`; None where one was not run."""
    return times[over] / times[under] if over in times and under in times else None


def least(figures: Sequence[float | None]) -> float | None:
    """Return the smallest; None if any is, or there are none: then no bar is kept."""
    known = [figure for figure in figures if figure is not None]
    return min(known) if known and len(known) == len(figures) else None


def rounded(figure: float | None, digits: int) -> float | None:
    """Return what a table shows of a figure that may be missing."""
    return None if figure is None else round(figure, digits)
