"""Real links: synthesized programs, the templates and Gloo on testbeds, and the predictions.

Three uneven networks in namespaces, shaped by the kernel; traffic crosses its TCP/IP stack. Each is
measured, planned for twice (templates alone, search-based generators alone) and run: the same
processes take turns with Gloo and both plan books, and compare every result with the expected one.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.ranks import MIB, Case, time_cases
from headrace.collectives.demand import Collective
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.cost.model import EXECUTOR
from headrace.collectives.plan.generators.table import SEARCH_GENERATORS
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.plan.request import Method
from headrace.collectives.run.synthesis import NativeSearch
from headrace.testbed import Testbed, TestbedSpec
from headrace.topology import Topology

COLLECTIVES = (Collective.ALLREDUCE, Collective.ALLGATHER, Collective.ALL_TO_ALL)
COMPARED = {"template": TEMPLATES, "synthesized": SEARCH_GENERATORS}
ERROR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A testbed and the host of every rank; `racks` and `hosts` as in a testbed's file."""

    name: str
    racks: tuple[dict[str, Any], ...]
    order: tuple[int, ...]
    hosts: dict[str, dict[str, str]] | None = None

    def spec(self) -> TestbedSpec:
        """Return the testbed's specification."""
        racks = [{"host_rate": "400mbit", **rack} for rack in self.racks]
        return TestbedSpec.from_table(
            {"name": self.name, "racks": racks, "hosts": self.hosts or {}}
        )


SHAPES = (
    Network(
        name="two-by-two",  # as in examples/testbed-2x2.toml, ranks in turn
        racks=({"hosts": 2, "uplink_rate": "100mbit"},) * 2,
        order=(0, 2, 1, 3),
    ),
    Network(
        name="three-and-one",  # uneven racks, and one host slower than its uplink
        racks=(
            {"hosts": 3, "uplink_rate": "200mbit"},
            {"hosts": 1, "uplink_rate": "100mbit"},
        ),
        hosts={"host1": {"rate": "80mbit"}},
        order=(0, 3, 1, 2),
    ),
    Network(
        name="three-racks",  # uplinks of a quarter and an eighth of a host, ranks shuffled
        racks=(
            {"hosts": 2, "uplink_rate": "100mbit"},
            {"hosts": 2, "uplink_rate": "50mbit"},
            {"hosts": 2, "uplink_rate": "50mbit"},
        ),
        order=(3, 0, 4, 1, 5, 2),
    ),
)


def bars() -> dict[str, str]:
    """Return one bar a shape: the median error of the synthesized programs' predictions."""
    return {f"links-prediction-error-{shape.name}": f"<={ERROR}" for shape in SHAPES}


def measure(report: Report, *, quick: bool) -> None:
    """Add the rows and give the bars."""
    sizes = {1: 2} if quick else {1: 3, 8: 2}
    for shape in SHAPES:
        with Testbed.up(shape.spec()) as testbed, tempfile.TemporaryDirectory() as folder:
            if testbed.is_fallback:
                report.note(f"{shape.name}: no namespaces, not measured: {testbed.fallback_reason}")
                continue
            errors = _shape(report, shape, testbed, Path(folder), sizes, quick=quick)
        report.bar(f"links-prediction-error-{shape.name}", statistics.median(errors))
        report.row(
            "real links: |predicted / measured - 1| of synthesized programs",
            shape=shape.name,
            cases=len(errors),
            median=statistics.median(errors),
            worst=max(errors),
            within=f"{sum(error <= ERROR for error in errors)} of {len(errors)}",
        )
    report.note(
        "real links: median over repetitions, from the ranks' mean call to the last rank's end; "
        "Gloo through torch, the programs on the native executor; predictions on the "
        f"{'true' if quick else 'measured'} topology; sizes are rounded down to whole floats a "
        "rank; the bars hold the median over a shape's rows, the worst stands beside it"
    )


def _shape(
    report: Report,
    shape: Network,
    testbed: Testbed,
    folder: Path,
    sizes: dict[int, int],
    *,
    quick: bool,
) -> list[float]:
    """Plan, run and compare on one shape; `sizes` are MiB -> repetitions. Returns the errors."""
    began = time.monotonic()
    topology, groups = _network(shape, testbed, quick=quick)
    measured = time.monotonic()
    ranks = len(shape.order)
    cases = [
        Case(
            collective=collective,
            bytes=size * MIB // (4 * ranks) * 4 * ranks,
            repeats=repeats,
            warm_up=1 if size == min(sizes) else 0,
        )
        for size, repeats in sizes.items()
        for collective in COLLECTIVES
    ]
    books = _books(topology, groups, sorted({case.bytes for case in cases}), quick=quick)
    for name, book in books.items():
        book.save(folder / f"{name}.book")
    planned = time.monotonic()
    backends = {"gloo": None, **{name: folder / f"{name}.book" for name in books}}
    results = time_cases(testbed, shape.order, backends, cases)
    report.row(
        "real links: the work",
        shape=shape.name,
        network="true" if quick else "measured",
        network_s=measured - began,
        plan_s=planned - measured,
        run_s=time.monotonic() - planned,
    )
    return [
        _compare(report, shape, case, times, books)
        for case, times in zip(cases, results, strict=True)
    ]


def _network(
    shape: Network, testbed: Testbed, *, quick: bool
) -> tuple[Topology, RankGroups | None]:
    if quick:
        return testbed.spec.topology(shape.order), None
    profile = measure_testbed(testbed, [testbed.hosts[index].name for index in shape.order])
    return profile.topology, profile.groups


def _books(
    topology: Topology, groups: RankGroups | None, sizes: Sequence[int], *, quick: bool
) -> dict[str, PlanBook]:
    method = Method(model=EXECUTOR, engine=NativeSearch(), effort="quick" if quick else "normal")
    return {
        name: build_book(
            topology,
            groups=groups,
            collectives=COLLECTIVES,
            sizes=sizes,
            generators=generators,
            method=method,
        )
        for name, generators in COMPARED.items()
    }


def _compare(
    report: Report,
    shape: Network,
    case: Case,
    times: dict[str, float],
    books: dict[str, PlanBook],
) -> float:
    """Add a row; returns the synthesized program's error."""
    columns: dict[str, Any] = {"gloo_ms": times["gloo"] / 1e3}
    errors: dict[str, float] = {}
    for name, book in books.items():
        plan = book.choose(case.collective, case.bytes)
        assert plan is not None
        predicted = predict_us(plan.program, book.topology, case.bytes)
        errors[name] = abs(predicted / times[name] - 1)
        columns[f"{name}_ms"] = times[name] / 1e3
        columns[f"{name}_predicted_ms"] = predicted / 1e3
        columns[f"{name}_error"] = f"{predicted / times[name] - 1:+.1%}"
        columns[f"{name}_by"] = f"{plan.generator} x{plan.program.demand.chunks}"
    report.row(
        "real links",
        shape=shape.name,
        collective=case.collective.value,
        mib=round(case.bytes / MIB),
        **columns,
        over_gloo=times["gloo"] / times["synthesized"],
        over_template=times["template"] / times["synthesized"],
    )
    return errors["synthesized"]
