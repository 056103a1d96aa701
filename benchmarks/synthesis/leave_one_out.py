"""Leave one out: by how much every generator's absence raises the best predicted time.

Every generator runs in a portfolio of its own, so that none is skipped because another is close to
the bound, and none is pruned against another's candidates. The worth of generator g in a case is
(best without g) / (best of all) - 1, 0 for all but the winner. Predicted times decide; on real
links, portfolios with and without a winner are also run.
"""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any, get_args

from benchmarks.harness import ROOT, Report
from benchmarks.instruments.perturbed import perturbed
from benchmarks.ranks import Case as Call
from benchmarks.ranks import time_cases
from benchmarks.synthesis import links, nccl
from benchmarks.synthesis.cases import CASES, TORI
from benchmarks.synthesis.irregular import COLLECTIVES, MACHINES
from benchmarks.synthesis.random_cases import EFFORTS
from benchmarks.synthesis.random_topologies import random_topology
from benchmarks.synthesis.random_worker import SAME
from benchmarks.synthesis.table import MODELS, SEEDS
from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.cost.model import EXECUTOR, FULL
from headrace.collectives.plan.generators.limits import MOST_DELIVERIES
from headrace.collectives.plan.generators.orbits.build import plan_orbits
from headrace.collectives.plan.generators.table import ALL_GENERATORS
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Effort, Method
from headrace.collectives.run.synthesis import NativeSearch
from headrace.testbed import Testbed
from headrace.topology import Topology, presets

MB, MIB, GIB = 1_000_000, 1 << 20, 1 << 30
LEAST = 0.02
"""Worth, in its best case, from which a generator is kept for its own sake."""

SHOWN = ROOT.parent / "build" / "leave-one-out.jsonl"
"""Every case's times as they come."""

SCALE: dict[str, Callable[[], Topology]] = {
    "80-gpus": lambda: presets.ndv2_taccl_1mb(10),
    "1024-gpus": lambda: presets.dgx_a100(128),
    "1024-ranks-torus": lambda: presets.torus((32, 32)),
}
"""As in section `scale`, with a torus of a quarter of its ranks: templates are tried there, too."""

_PERTURBED_ROWS = (*CASES[:2], CASES[6])
"""Rows of one machine, whose costs are perturbed as in section `table`."""

_PERTURBED: dict[str, Callable[[], Topology]] = {
    "dgx1": lambda: presets.dgx1(1),
    "hub-and-spoke-6": lambda: presets.hub_and_spoke(6),
    "mesh-2x3": lambda: presets.mesh((2, 3)),
    "ring-6": lambda: presets.torus((6,)),
}
"""Small machines beside them, of which every link gets random costs."""

_PERTURBED_COLLECTIVES = (Collective.ALLGATHER, Collective.ALL_TO_ALL, Collective.BROADCAST)
_RANDOM_SEEDS = range(12)
_ALL = "all"
"""Name of the portfolio that leaves nothing out."""

_SCALE_CASES = (
    ("80-gpus", Collective.ALLGATHER, 80 * MB),
    ("1024-gpus", Collective.ALLGATHER, GIB),
    ("1024-gpus", Collective.ALLREDUCE, GIB),
    ("1024-ranks-torus", Collective.ALLGATHER, GIB),
)
_LIMIT_S = 1800.0
"""Of a shape's calls with all books."""

_TASKS = 8
"""Cases of a worker process: threads that a time limit abandoned end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case: `name` is a table row, machine, shape or seed, or `<row or machine>/<seed>`."""

    family: str
    name: str
    collective: Collective
    total_bytes: int
    model: str = "full"
    effort: str = "normal"

    def make(self) -> tuple[Topology, int | None]:
        """Return the topology, and chunks a block if the row fixes them."""
        if self.family == "perturbed":
            name, _, seed = self.name.rpartition("/")
            if name in _PERTURBED:
                return perturbed(_PERTURBED[name](), int(seed)), None
            row = next(row for row in _PERTURBED_ROWS if row.name == name)
            return MODELS[self.model](perturbed(row.make(), int(seed))), row.chunks
        if self.family == "table":
            row = next(row for row in (*CASES, *TORI) if row.name == self.name)
            return MODELS[self.model](row.make()), row.chunks
        if self.family == "nccl":
            return nccl.MACHINES[self.name].make(), None
        if self.family == "irregular":
            return MACHINES[self.name](), None
        if self.family == "random":
            return random_topology(int(self.name)), None
        if self.family == "scale":
            return SCALE[self.name](), None
        shape = next(shape for shape in links.SHAPES if shape.name == self.name)
        return shape.spec().topology(shape.order), None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Predicted times of a case in us, by generator, and those that failed or ran out of time."""

    us: dict[str, float]
    stopped: tuple[str, ...] = ()

    def worth(self, generator: str) -> float:
        """Return (best without `generator`) / (best) - 1; infinite if no other has a plan."""
        others = [us for name, us in self.us.items() if name != generator]
        return min(others, default=float("inf")) / min(self.us.values()) - 1


def bars() -> dict[str, str]:
    """Return no bars: the worths tell which generators are kept."""
    return {}


def cases(*, quick: bool) -> Iterator[Case]:
    """Yield every case; `quick`: few, and little effort."""
    for row in (*CASES[:2], TORI[0]) if quick else (*CASES, *TORI):
        for model in ("full",) if quick or row in TORI else MODELS:
            yield Case(
                family="table",
                name=row.name,
                collective=row.collective,
                total_bytes=row.total_bytes,
                model=model,
                effort="quick" if quick else "normal",
            )
    yield from _perturbed_cases(quick=quick)
    for name in ("ndv2-x2",) if quick else ("dgx2-x2", "ndv2-x2"):
        for collective in nccl.COLLECTIVES:
            for total in nccl.QUICK_SIZES[1:2] if quick else nccl.QUICK_SIZES:
                yield Case(
                    family="nccl",
                    name=name,
                    collective=collective,
                    total_bytes=total,
                    effort="quick",
                )
    for name in ("mesh-3x4",) if quick else MACHINES:
        for collective in COLLECTIVES:
            yield Case(
                family="irregular",
                name=name,
                collective=collective,
                total_bytes=16 * MIB,
                effort="quick" if quick else "normal",
            )
    sizes = list(EFFORTS)
    for seed in _RANDOM_SEEDS[:2] if quick else _RANDOM_SEEDS:
        for at, collective in enumerate(COLLECTIVES):
            total = sizes[(seed + at) % len(sizes)]
            effort = "quick" if quick else EFFORTS[total]
            yield Case(
                family="random",
                name=str(seed),
                collective=collective,
                total_bytes=total,
                effort=effort,
            )
    for name, collective, total in () if quick else _SCALE_CASES:
        yield Case(family="scale", name=name, collective=collective, total_bytes=total)
    for shape in links.SHAPES[:1] if quick else links.SHAPES:
        for collective in links.COLLECTIVES:
            for mib in (1,) if quick else (1, 8):
                yield Case(
                    family="links",
                    name=shape.name,
                    collective=collective,
                    total_bytes=_whole(mib, len(shape.order)),
                    model="executor",
                    effort="quick" if quick else "normal",
                )


def _perturbed_cases(*, quick: bool) -> Iterator[Case]:
    for seed in SEEDS[:1] if quick else SEEDS:
        for row in _PERTURBED_ROWS[:1] if quick else _PERTURBED_ROWS:
            for model in ("full",) if quick else MODELS:
                yield Case(
                    family="perturbed",
                    name=f"{row.name}/{seed}",
                    collective=row.collective,
                    total_bytes=row.total_bytes,
                    model=model,
                )
        for name, make in () if quick else _PERTURBED.items():
            for collective in _PERTURBED_COLLECTIVES:
                yield Case(
                    family="perturbed",
                    name=f"{name}/{seed}",
                    collective=collective,
                    total_bytes=_whole(16, make().ranks),
                )


def measure(report: Report, *, quick: bool) -> None:
    """Add a row per family and generator, and the measured times beside those on real links."""
    found: dict[Case, Times] = {}
    SHOWN.parent.mkdir(exist_ok=True)
    asked = list(cases(quick=quick))
    with (
        SHOWN.open("w") as shown,
        get_context("spawn").Pool(cpu_count(), maxtasksperchild=_TASKS) as pool,
    ):
        for case, times in pool.imap_unordered(planned, asked):
            found[case] = times
            shown.write(json.dumps(asdict(case) | asdict(times)) + "\n")
            shown.flush()
    for family in dict.fromkeys(case.family for case in asked):
        _rows(report, family, [(case, found[case]) for case in asked if case.family == family])
    _measured(report, {case: found[case] for case in asked if case.family == "links"}, quick=quick)
    report.note(
        f"leave one out: {len(asked)} cases; table rows in both models (tori in the full one), "
        f"small machines with costs perturbed by up to 30% (seeds {SEEDS[0]} to {SEEDS[-1]}), two "
        "machines of section `nccl` with quick effort, "
        f"irregular machines at 16 MiB, random topologies 0 to {_RANDOM_SEEDS[-1]} with sizes in "
        "turn; 80 GPUs, and 1,024 ranks, where only orbits and templates are applicable (1e9: no "
        "template is); on real links under the executor's model, where search has no pruning anyway"
    )


def planned(case: Case) -> tuple[Case, Times]:
    """Run every generator alone."""
    topology, chunks = case.make()
    assert case.effort in get_args(Effort)
    method = Method(
        model=EXECUTOR if case.model == "executor" else FULL,
        engine=NativeSearch(),
        effort=case.effort,  # pyright: ignore[reportArgumentType]
        chunks=chunks,
    )
    us: dict[str, float] = {}
    stopped: list[str] = []
    for generator in ALL_GENERATORS:
        try:
            plan = plan_collective(
                topology,
                case.collective,
                case.total_bytes,
                generators=(generator,),
                method=method,
            )
        except ProgramError as error:  # not applicable, or out of time without a plan
            if "stopped:" in str(error) or "failed:" in str(error):
                stopped.append(f"{generator.name}: {error}")
            continue
        us[generator.name] = plan.predicted_us
        stopped += [
            f"{generator.name}: {row.note}"
            for row in plan.candidates
            if row.note.startswith(("failed:", "stopped:"))
        ]
    if topology.ranks**2 > MOST_DELIVERIES:  # beyond, orbit plans are kept by symmetry
        us["orbits"] = plan_orbits(topology, case.collective, case.total_bytes).predicted_us
    return case, Times(us=us, stopped=tuple(stopped))


def _rows(report: Report, family: str, found: Sequence[tuple[Case, Times]]) -> None:
    for generator in (each.name for each in ALL_GENERATORS):
        worths = {case: t.worth(generator) for case, t in found if generator in t.us}
        if not worths:
            continue
        most = max(worths, key=worths.__getitem__)
        won = [worth for worth in worths.values() if worth > SAME]
        report.row(
            f"leave one out: {family}, predicted",
            generator=generator,
            cases=len(worths),
            wins=len(won),
            worth_median_of_wins=min(statistics.median(won or [0.0]), 1e9),
            worth_max=min(worths[most], 1e9),
            earns=worths[most] >= LEAST,
            max_at=f"{most.name} {most.collective.value} {most.total_bytes} B {most.model}",
            stopped=sum(any(s.startswith(f"{generator}:") for s in t.stopped) for _, t in found),
        )


def _measured(report: Report, found: dict[Case, Times], *, quick: bool) -> None:
    """Run the best plans of all generators, and those without each that wins by prediction."""
    for shape in links.SHAPES:
        mine = {case: times for case, times in found.items() if case.name == shape.name}
        winners = sorted({g for t in mine.values() for g in t.us if t.worth(g) > SAME})
        if not winners:
            continue
        with Testbed.up(shape.spec()) as testbed, tempfile.TemporaryDirectory() as folder:
            if testbed.is_fallback:
                report.note(f"{shape.name}: no namespaces, not measured")
                continue
            topology = shape.spec().topology(shape.order)
            sizes = sorted({case.total_bytes for case in mine})
            books: dict[str, Path] = {}
            for without in (_ALL, *winners):
                book = build_book(
                    topology,
                    collectives=links.COLLECTIVES,
                    sizes=sizes,
                    generators=[each for each in ALL_GENERATORS if each.name != without],
                    method=Method(model=EXECUTOR, engine=NativeSearch(), effort="quick"),
                )
                books[without] = Path(folder) / f"{without}.book"
                book.save(books[without])
            calls = [
                Call(
                    collective=case.collective,
                    bytes=case.total_bytes,
                    repeats=2 if quick else 5,
                    warm_up=1,
                )
                for case in mine
            ]
            ran = time_cases(testbed, shape.order, dict(books), calls, timeout_s=_LIMIT_S)
        for (case, times), took in zip(mine.items(), ran, strict=True):
            for without in winners:
                if without not in times.us or times.worth(without) <= SAME:
                    continue
                columns: dict[str, Any] = {
                    "predicted_worth": times.worth(without),
                    "measured_ms": took[_ALL] / 1e3,
                    "measured_without_ms": took[without] / 1e3,
                    "measured_worth": took[without] / took[_ALL] - 1,
                }
                report.row(
                    "leave one out: links, measured",
                    shape=shape.name,
                    collective=case.collective.value,
                    mib=round(case.total_bytes / MIB),
                    left_out=without,
                    **columns,
                )


def _whole(mib: int, ranks: int) -> int:
    return mib * MIB // (4 * ranks) * 4 * ranks
