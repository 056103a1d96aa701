"""2LHA by groups of different methods, flat aggregation and the planner's choice: PLink 5.4.

A run is one draw of every random method: the embedding and k-means start anew, random groups are
drawn anew. The programs of a run take turns on the same connections. All 2LHA has masters in
proportion to group size, as in the paper; the planner uses capacities.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed, groups_text
from benchmarks.instruments.grouping import balanced_random, square_root_groups
from benchmarks.network.launch import Made, time_programs
from benchmarks.ranks import MIB
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.measure.embed.clusters import candidate_groups
from headrace.collectives.measure.embed.distances import pair_distances
from headrace.collectives.measure.embed.embedding import embed
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.templates.two_level.masters import spread_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import chunk_count, two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.portfolio import plan_collective, predict_us
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program, Schedule
from headrace.testbed import Testbed
from headrace.topology.profile import Profile

BEDS = (
    Bed(name="3x3", racks=(3, 3, 3), host_mbit=200, uplink_mbit=75, seed=2),
    Bed(name="5-2-1", racks=(5, 2, 1), host_mbit=200, uplink_mbit=75, seed=2),
)
SIZE = 2 * MIB // 288 * 288
"""Whole floats for 8 and for 9 ranks."""

RUNS = 20
QUICK_BEDS = 1
EMBEDDED, SQRT, TRUTH, RANDOM, FLAT, PLANNER = (
    "ProbeEmbed, by cost",
    "ProbeEmbed, sqrt(n)",
    "ground truth",
    "balanced random",
    "flat (sharded PS)",
    "planner's choice",
)
PAPER = {TRUTH: "1.15", RANDOM: "1.3, 3.9", FLAT: "-", SQRT: "-", EMBEDDED: "-", PLANNER: "-"}


def bars(beds: Sequence[Bed] = BEDS) -> dict[str, str]:
    """Return the bars: how many times as long the others take, medians over runs."""
    made: dict[str, str] = {}
    for bed in beds:
        made[f"two-level-over-ground-truth-{bed.name}"] = ">=0.97"  # the racks may be the best
        made[f"two-level-over-random-{bed.name}"] = ">=1.3"
        made[f"two-level-over-flat-{bed.name}"] = ">=1.3"
        made[f"planner-over-two-level-{bed.name}"] = ">=0.97"
    return made


NOT_IN_QUICK = frozenset(bars(BEDS[QUICK_BEDS:]))


def measure(report: Report, *, quick: bool) -> None:
    """Run on both testbeds and give the bars."""
    for bed in BEDS[:QUICK_BEDS] if quick else BEDS:
        over = _bed(report, bed, runs=4 if quick else RUNS, surveys=1 if quick else 4)
        report.bar(f"two-level-over-ground-truth-{bed.name}", over[TRUTH])
        report.bar(f"two-level-over-random-{bed.name}", over[RANDOM])
        report.bar(f"two-level-over-flat-{bed.name}", over[FLAT])
        report.bar(f"planner-over-two-level-{bed.name}", 1 / over[PLANNER])
    report.note(
        "2LHA: measured on the testbed's links by the native executor, every result compared; "
        "predicted on the topology that was measured; p95 by linear interpolation. "
        "The paper's figures: 64 machines, means over assignments, Azure and EC2"
    )
    if quick:
        report.note(f"quick: 4 runs a method in place of {RUNS}, on one testbed")


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    program: Program
    described: str
    predicted_ms: dict[int, float] = field(default_factory=dict[int, float])  # by survey


class _Plans:
    """Every distinct program once; numbered in the order of their first use."""

    def __init__(self, bed: Bed, surveys: list[Profile]) -> None:
        self._bed = bed
        self._surveys = surveys
        self._numbers: dict[tuple[object, ...], int] = {}
        self.entries: list[_Entry] = []
        self.add(("barrier",), templates.full_exchange(self._demand(1)), "barrier")

    def _demand(self, chunks: int) -> Demand:
        return Demand(collective=Collective.ALLREDUCE, ranks=self._bed.ranks, chunks=chunks)

    def add(self, key: tuple[object, ...], made: Schedule | Program, described: str) -> int:
        """Return the number of the program with this key, adding it if it is new."""
        if key not in self._numbers:
            self._numbers[key] = len(self.entries)
            program = made if isinstance(made, Program) else lower(made)
            text = f"{described} x{program.demand.chunks}"
            self.entries.append(_Entry(program=program, described=text))
        return self._numbers[key]

    def described(self, number: int) -> str:
        """Groups or generator, and the number of chunks."""
        return self.entries[number].described

    def grouped(self, groups: RankGroups) -> int:
        """2LHA over `groups`."""
        key = ("2lha", groups)
        if key in self._numbers:
            return self._numbers[key]
        chunks = chunk_count(SIZE, self._bed.ranks)
        made = two_level(self._demand(chunks), spread_masters(groups, chunks))
        return self.add(key, made, groups_text(groups))

    def flat(self) -> int:
        """Flat aggregation: every rank aggregates its share of the vector."""
        return self.add(("flat",), templates.direct(self._demand(self._bed.ranks)), "direct")

    def planned(self, survey: int) -> int:
        """The planner's plan for a survey."""
        key = ("planner", survey)
        if key in self._numbers:
            return self._numbers[key]
        profile = self._surveys[survey]
        plan = plan_collective(profile.topology, Collective.ALLREDUCE, SIZE, groups=profile.groups)
        return self.add(key, plan.program, plan.generator)

    def predicted_ms(self, number: int, survey: int) -> float:
        """Time (ms) simulated on the topology of a survey."""
        entry = self.entries[number]
        if survey not in entry.predicted_ms:
            topology = self._surveys[survey].topology
            entry.predicted_ms[survey] = predict_us(entry.program, topology, SIZE) / 1e3
        return entry.predicted_ms[survey]

    def proven(self) -> list[Made]:
        """All programs with their proofs."""
        return [(entry.program, verify(entry.program)) for entry in self.entries]


def _bed(report: Report, bed: Bed, *, runs: int, surveys: int) -> dict[str, float]:
    """Measure and plan `runs` times, time all, add the rows.

    Returns every method's time over that of the embedded groups in the same run, medians.
    """
    with Testbed.up(bed.spec, fallback=False) as testbed:
        found = [measure_testbed(testbed, bed.rank_hosts) for _ in range(surveys)]
        plans = _Plans(bed, found)
        drawn = [_draw(plans, bed, found, run) for run in range(runs)]
        methods = list(drawn[0])
        turns = [np.random.default_rng(run).permutation(len(methods)) for run in range(runs)]
        # a first round that does not count: connections open their windows
        rounds = [*drawn[0].values()]
        for run, turn in zip(drawn, turns, strict=True):
            rounds += [run[methods[index]] for index in turn]
        times = time_programs(testbed, bed, plans.proven(), rounds, SIZE)
    measured = np.empty((runs, len(methods)))
    for row, turn in enumerate(turns):
        begin = len(methods) * (1 + row)
        measured[row, turn] = np.array(times[begin : begin + len(methods)]) / 1e3
    over: dict[str, float] = {}
    for column, method in enumerate(methods):
        ms = measured[:, column]
        ratios = ms / measured[:, 0]
        over[method] = float(np.median(ratios))
        report.row(
            f"2LHA on {bed.name}, {SIZE / MIB:.1f} MiB, hosts {bed.host_mbit:g}, uplinks "
            f"{bed.uplink_mbit:g} Mbit/s",
            groups_by=method,
            runs=runs,
            plans=len({run[method] for run in drawn}),
            plan=plans.described(drawn[0][method]),
            median_ms=round(float(np.median(ms)), 1),
            p95_ms=round(float(np.percentile(ms, 95)), 1),
            predicted_ms=round(
                statistics.median(
                    plans.predicted_ms(run[method], number % surveys)
                    for number, run in enumerate(drawn)
                ),
                1,
            ),
            over_first=round(over[method], 3),
            over_first_p95=round(float(np.percentile(ratios, 95)), 2),
            paper=PAPER[method],
        )
    return over


def _draw(plans: _Plans, bed: Bed, surveys: list[Profile], run: int) -> dict[str, int]:
    """Return the program's number by method."""
    survey = run % len(surveys)
    bandwidth = surveys[survey].matrix("bytes_per_s")
    distances, _ = pair_distances(bandwidth=bandwidth)
    points = embed(distances, seed=run).coordinates
    best = candidate_groups(
        bandwidth,
        lambda groups: plans.predicted_ms(plans.grouped(groups), survey),
        points=points,
        seed=run,
    )[0]
    return {
        EMBEDDED: plans.grouped(best.groups),
        SQRT: plans.grouped(square_root_groups(points, seed=run)),
        TRUTH: plans.grouped(bed.groups),
        RANDOM: plans.grouped(balanced_random(bed.ranks, seed=run)),
        FLAT: plans.flat(),
        PLANNER: plans.planned(survey),
    }
