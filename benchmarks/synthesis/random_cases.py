"""Random irregular topologies: every case planned in bounded time, proven, above its bound.

Nothing here was chosen because headrace does well on it. Every case runs in a worker process that
is killed past a limit, so that a case that hangs is counted and the next one runs.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from queue import SimpleQueue

import numpy as np

from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from benchmarks.synthesis.random_topologies import SEEDS
from benchmarks.synthesis.random_worker import Answer, Case
from headrace.errors import CommunicationError
from headrace.launch.roles import Role, Roles

SECTION = "random"

HANG_S = 60.0
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast")
EFFORTS = {16 << 10: "quick", 1 << 20: "normal", 256 << 20: "quick"}
"""By size in bytes."""

_HANGING = Case(seed=None, collective="reduce_scatter", total_bytes=1_000_000, effort="normal")
_QUICK_SEEDS = range(6)
_PLANNER = Role(
    name="the worker",
    argv=(sys.executable, "-m", "benchmarks.synthesis.random_worker"),
    env=WHERE,
)


def bars() -> dict[str, str]:
    """Return the bars: no case may hang, or fail in another way."""
    return {"hang-cases": "<=0", "random-failures": "<=0"}


def cases(*, quick: bool) -> Iterator[Case]:
    """Yield every case; `quick`: of few topologies, two of each kind."""
    yield _HANGING
    seeds = _QUICK_SEEDS if quick else SEEDS
    for seed, collective, total in product(seeds, COLLECTIVES, EFFORTS):
        yield Case(seed=seed, collective=collective, total_bytes=total, effort=EFFORTS[total])


def measure(report: Report, *, quick: bool) -> None:
    """Add the rows and give the bars."""
    hanging, failures = 0, 0
    gaps: dict[tuple[str, int], list[float]] = {}
    wins: dict[str, int] = {}
    slowest, spent = 0.0, 0.0
    for case, answer in _answered(cases(quick=quick)):
        slowest, spent = max(slowest, answer.seconds), spent + answer.seconds
        hanging += answer.seconds > HANG_S
        failures += bool(answer.failure)
        if answer.failure or answer.stopped or answer.seconds > HANG_S:
            report.row(
                "random topologies: cases to look at",
                **asdict(case),
                seconds=answer.seconds,
                failure=answer.failure,
                stopped="; ".join(answer.stopped),
            )
        if answer.gap is not None:
            gaps.setdefault((case.collective, case.total_bytes), []).append(answer.gap)
            wins[answer.generator] = wins.get(answer.generator, 0) + 1
    for (collective, total), found in gaps.items():
        report.row(
            "random topologies: gap to the bound",
            collective=collective,
            total_bytes=total,
            effort=EFFORTS.get(total, "normal"),
            cases=len(found),
            median=float(np.median(found)),
            p90=float(np.percentile(found, 90)),
            max=max(found),
        )
    for generator, count in sorted(wins.items(), key=lambda row: -row[1]):
        report.row("random topologies: generators", generator=generator, wins=count)
    report.note(
        f"random topologies: {spent:.0f} s of planning in all, the slowest case {slowest:.1f} s"
    )
    report.bar("hang-cases", hanging)
    report.bar("random-failures", failures)


def _answered(asked: Iterable[Case]) -> Iterator[tuple[Case, Answer]]:
    """Plan cases in as many workers as there are processors; answers come in the cases' order."""
    count = os.cpu_count() or 1
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for _ in range(count):
        idle.put(_Worker())

    def answer(case: Case) -> tuple[Case, Answer]:
        worker = idle.get()
        try:
            return case, worker.answer(case)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(answer, asked)
    finally:
        for _ in range(count):
            idle.get().close()


class _Worker:
    """A process that plans one case after the other; a new one follows one that was killed."""

    def __init__(self) -> None:
        self._roles = Roles({0: _PLANNER}, grace_s=0.0)
        self._roles.__enter__()

    def answer(self, case: Case) -> Answer:
        began = time.monotonic()
        self._roles.send(0, asdict(case))
        try:
            found = self._roles.expect("planning", 2 * HANG_S)  # an end tells more than a kill
        except CommunicationError as error:
            self._roles.restart(0)
            return Answer(seconds=time.monotonic() - began, failure=str(error))
        assert found is not None
        return Answer(**found[1])

    def close(self) -> None:
        self._roles.end()
