"""Random training programs within budgets of their own: peaks, and gradients against float64's."""

from benchmarks.harness import Report
from benchmarks.memory.step import one_thread
from headrace.memory.exactness import Exactness
from headrace.memory.measure.timing import Cost
from tests.memory.programs import Measured, measured

SECTION = "programs"
_PROGRAMS, _QUICK_PROGRAMS = 300, 30


def bars() -> dict[str, str]:
    """Return the bar."""
    return {"over-budget-programs": "<= 0"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure programs with the first seeds."""
    seeds = range(_QUICK_PROGRAMS if quick else _PROGRAMS)
    costs: dict[str, Cost] = {}
    cells: list[Measured] = []
    with one_thread():
        for seed in seeds:
            cells += measured(seed, Exactness.ROUNDED, costs)
    exceeding = [cell for cell in cells if cell.excess_bytes > 0]
    for cell in exceeding:
        report.row(
            "programs above their budgets",
            seed=cell.seed,
            budget_bytes=cell.budget_bytes,
            excess_bytes=cell.excess_bytes,
        )
    rounded = [cell for cell in cells if cell.rounds]
    report.row(
        "random programs",
        programs=len(seeds),
        budgets=len(cells),
        exceeded=len(exceeding),
        rounded=len(rounded),
        equal_to_eager=sum(cell.is_equal for cell in cells),
        differ_without_reason=sum(not (cell.rounds or cell.is_equal) for cell in cells),
        worst_error_over_eager=max(cell.error_over_eager for cell in cells),
    )
    report.bar("over-budget-programs", len({cell.seed for cell in exceeding}))
