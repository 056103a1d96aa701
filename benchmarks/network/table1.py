"""PLink's table 1: rounds and bytes counted from proven programs, beside the paper's formulas."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isclose, log, log2

from benchmarks.harness import Report
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.templates.two_level.masters import spread_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.statistics import ProgramStatistics, program_statistics
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Schedule

SHAPES = ((2, 4), (3, 3), (4, 4), (8, 8))
TWO_LEVEL = "2-level hierarchical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1Row:
    """One algorithm of the table.

    Attributes
    ----------
    counted : rounds, and bytes in vectors of S bytes, of the proven program.
    paper : the same by the formulas of the paper: rounds, bytes on the wire, bytes across racks.
    why : reason for differences; empty if there are none.
    """

    name: str
    counted: ProgramStatistics
    paper: tuple[float, float, float]
    why: str


def bars() -> dict[str, str]:
    """Return the bars: counts of rows."""
    return {"table1-two-level-differences": "<=0", "table1-unexplained": "<=0"}


def measure(report: Report, *, quick: bool) -> None:
    """Count for several shapes of C racks of N ranks."""
    different = unexplained = 0
    why: dict[str, str] = {}
    for racks, each in SHAPES[:-1] if quick else SHAPES:
        for row in table1(racks, each):
            same = agrees(row)
            different += not same and row.name == TWO_LEVEL
            unexplained += not same and not row.why
            rounds, wire, across = row.paper
            report.row(
                "table 1, bytes in vectors",
                racks=racks,
                ranks_each=each,
                algorithm=row.name,
                rounds=row.counted.rounds,
                paper_rounds=round(rounds, 2),
                wire=row.counted.wire,
                paper_wire=round(wire, 2),
                across=row.counted.across,
                paper_across=round(across, 2),
                note="-" if same else "below" if row.why else "UNEXPLAINED",
            )
            if row.why:
                why[row.name] = row.why
    for name, text in why.items():
        report.note(f"table 1, {name}: {text}")
    report.bar("table1-two-level-differences", different)
    report.bar("table1-unexplained", unexplained)


def agrees(row: Table1Row) -> bool:
    """Return whether the counts equal the formulas."""
    counted = (row.counted.rounds, row.counted.wire, row.counted.across)
    return all(isclose(a, b, abs_tol=1e-6) for a, b in zip(counted, row.paper, strict=True))


def table1(racks: int, ranks_per_rack: int) -> tuple[Table1Row, ...]:
    """Return the rows for C racks of N ranks each, numbered rack by rack.

    Raises
    ------
    ProgramError : if a number is less than 1.
    VerificationError : never, unless a template is wrong.
    """
    c, n = racks, ranks_per_rack
    groups = tuple(tuple(range(k * n, (k + 1) * n)) for k in range(c))
    return tuple(
        _row(name, _count(make(c * n, groups), groups), formula(c, n), why)
        for name, make, formula, why in _ALGORITHMS
    )


def _count(schedule: Schedule, groups: RankGroups) -> ProgramStatistics:
    program = lower(schedule)
    verify(program)
    return program_statistics(program, groups)


def _row(
    name: str, counted: ProgramStatistics, paper: tuple[float, float, float], why: str
) -> Table1Row:
    found = (counted.rounds, counted.wire, counted.across)
    same = all(isclose(a, b, abs_tol=1e-9) for a, b in zip(found, paper, strict=True))
    return Table1Row(name=name, counted=counted, paper=paper, why="" if same else why)


def _demand(ranks: int, chunks: int) -> Demand:
    return Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks)


def _sharded(ranks: int, _groups: RankGroups) -> Schedule:
    return templates.direct(_demand(ranks, ranks))


def _halving_doubling(ranks: int, _groups: RankGroups) -> Schedule:
    return templates.halving_doubling(_demand(ranks, 1 << (ranks - 1).bit_length()))


def _ring(ranks: int, _groups: RankGroups) -> Schedule:
    return templates.ring(_demand(ranks, ranks))


def _tree(ranks: int, _groups: RankGroups) -> Schedule:
    return templates.double_binary_tree(_demand(ranks, 2))


def _two_level(ranks: int, groups: RankGroups) -> Schedule:
    return two_level(_demand(ranks, ranks), spread_masters(groups, ranks))


def _tree_formula(c: int, n: int) -> tuple[float, float, float]:
    fan_out = max(2, c)  # a tree of fan-out 1 is none
    return (
        2 * (log(n) / log(fan_out) + 1),
        2 * c * (n * c - 1) / (c - 1) if c > 1 else float("nan"),
        2 * c * (n - 1) / (c - 1) if c > 1 else float("nan"),
    )


_Make = Callable[[int, RankGroups], Schedule]
_Formula = Callable[[int, int], tuple[float, float, float]]

_ALGORITHMS: tuple[tuple[str, _Make, _Formula, str], ...] = (
    (
        "PS (fully sharded)",
        _sharded,
        lambda c, n: (2, 2 * (n * c - 1), 2 * n * (c - 1)),
        "",
    ),
    (
        "Halving doubling",
        _halving_doubling,
        lambda c, n: (2 * log2(n * c), 2 * (n * c - 1), 2 * (c - 1)),
        "the formulas are for powers of two: of other counts, some ranks hand their vectors to "
        "others before and get the result after, two rounds more",
    ),
    (
        "Ring-chunked",
        _ring,
        lambda c, n: (2 * n * c - 1, 2 * n * c - 1, 2 * c - 1),
        "a ring needs NC - 1 rounds to combine and NC - 1 to spread, each of S bytes in all: "
        "2(NC - 1) of both; C of its NC links cross, so 2(NC - 1) / NC * C = 2C - 2/N across",
    ),
    (
        "Tree",
        _tree,
        _tree_formula,
        "the paper's tree has fan-out C, all ranks as leaves and servers inside; ours is a double "
        "binary tree of the ranks themselves: each but the root passes the vector up and gets "
        "it back, 2(NC - 1), in 2 ceil(log2(NC)) rounds or fewer; across goes what joins racks",
    ),
    (
        "2-level hierarchical",
        _two_level,
        lambda c, n: (4, 2 * (n * c - 1), 2 * (c - 1)),
        "with a single rack, or racks of one rank, one of the two levels is empty",
    ),
)
