"""PLink's table 1: rounds and bytes counted from proven programs, beside the paper's formulas."""

from math import isclose

from benchmarks.harness import Report
from headrace.collectives.plan.generators.templates.two_level.table1 import Table1Row, table1

SHAPES = ((2, 4), (3, 3), (4, 4), (8, 8))
TWO_LEVEL = "2-level hierarchical"


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
