"""Plans random cases in a process of its own: a case a message in, an answer a message out.

A process, so that an endless loop can be killed, and one for many cases, as starting takes longer
than most of them.
"""

import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from headrace.launch.worker import Receive, Send, run_worker

HANG = Path(__file__).with_name("hang.topology")
"""Planning a reduce-scatter of 1 MB on this topology once looped without end."""

SAME = 1e-6
"""Of the bound: closer is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case to plan; without a seed on `HANG`."""

    seed: int | None
    collective: str
    total_bytes: int
    effort: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Outcome of a case: a plan's figures, or the reason why it counts as a failure."""

    seconds: float
    failure: str = ""
    generator: str = ""
    gap: float | None = None
    stopped: tuple[str, ...] = ()
    """Generators that failed, or that a limit in seconds stopped."""


def planned(case: Case) -> Answer:
    """Plan one case, prove the plan again, and compare it with its bound."""
    from benchmarks.synthesis.random_topologies import random_topology
    from headrace.collectives.demand import Collective
    from headrace.collectives.plan.cost.model import FULL
    from headrace.collectives.plan.generators.table import ALL_GENERATORS
    from headrace.collectives.plan.portfolio import plan_collective
    from headrace.collectives.plan.request import Method
    from headrace.collectives.plan.verify import verify
    from headrace.collectives.run.synthesis import NativeSearch
    from headrace.topology import Topology

    topology = Topology.load(HANG) if case.seed is None else random_topology(case.seed)
    method = Method(model=FULL, engine=NativeSearch(), effort=case.effort)  # pyright: ignore[reportArgumentType]
    began = time.monotonic()
    failure, generator, gap, stopped = "", "", None, ()
    try:
        plan = plan_collective(
            topology,
            Collective(case.collective),
            case.total_bytes,
            generators=ALL_GENERATORS,
            method=method,
        )
        generator, gap = plan.generator, plan.gap
        stopped = tuple(
            f"{row.generator}: {row.note}"
            for row in plan.candidates
            if row.note.startswith(("failed:", "stopped:"))
        )
        if verify(plan.program) != plan.proof:
            failure = "the proof is another program's"
        elif plan.predicted_us < plan.bound.total_us * (1 - SAME):
            failure = f"{plan.predicted_us} us is below its bound of {plan.bound.total_us} us"
    except Exception:
        failure = traceback.format_exc(limit=-3)
    seconds = time.monotonic() - began
    return Answer(seconds=seconds, failure=failure, generator=generator, gap=gap, stopped=stopped)


def answer_cases(receive: Receive, send: Send) -> NoReturn:
    """Answer cases until the parent is gone."""
    while True:
        send(**asdict(planned(Case(**receive()))))


if __name__ == "__main__":
    run_worker(answer_cases)
