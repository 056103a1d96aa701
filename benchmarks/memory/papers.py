"""Figures of the paper (Shah, dissertation, chapter 4 and appendix A) that rows are put beside."""

from collections.abc import Mapping

NOOP, FULL = "one implementation", "all implementations"
"""Columns MONeT-NoOp and MONeT of its tables."""
BUDGETS_GB = (5, 6, 7, 8, 9, 10)

Hours = tuple[float | None, ...]
"""Of `BUDGETS_GB`; None where the table has none."""

TO_5_PERCENT: Mapping[tuple[str, str], Hours] = {
    ("resnet50", NOOP): (1.18, 0.46, 0.14, 0.09, 0.06, 0.07),
    ("resnet50", FULL): (7.24, 3.84, 0.73, 0.70, 0.31, 0.11),
    ("googlenet", NOOP): (0.10, 0.11, 0.07, 0.07, 0.07, 0.07),
    ("googlenet", FULL): (3.53, 0.47, 0.54, 0.31, 0.25, 0.24),
    ("mobilenet_v2", NOOP): (0.11, 0.04, 0.02, 0.02, 0.04, 0.08),
    ("mobilenet_v2", FULL): (0.37, 0.28, 0.52, 0.05, 0.06, 0.03),
    ("unet", NOOP): (0.048, 0.002, 0.002, 0.002, 0.002, 0.002),
    ("unet", FULL): (0.363, 0.064, 0.028, 0.027, 0.024, 0.006),
    ("vgg16", NOOP): (None, None, None, 0.001, 0.000, 0.000),
    ("vgg16", FULL): (None, 0.003, 0.003, 0.003, 0.003, 0.003),
}
"""Table 4.4: hours to 5% close to the optimum; 27 cells of NoOp and 29 of the full program."""

TO_2_PERCENT: Mapping[tuple[str, str], Hours] = {
    ("resnet50", NOOP): (None, 2.06, 1.28, 0.16, 0.08, 0.07),
    ("resnet50", FULL): (None, None, 12.64, 3.00, 3.60, 0.62),
    ("googlenet", NOOP): (0.10, 0.11, 0.07, 0.07, 0.07, 0.07),
    ("googlenet", FULL): (None, 5.47, 5.34, 0.31, 0.25, 0.24),
    ("mobilenet_v2", NOOP): (0.43, 0.37, 0.02, 0.02, 0.10, 0.09),
    ("mobilenet_v2", FULL): (9.49, 5.33, 1.53, 0.14, 0.18, 0.05),
    ("unet", NOOP): (0.181, 0.003, 0.003, 0.002, 0.002, 0.002),
    ("unet", FULL): (5.001, 0.204, 0.164, 0.069, 0.083, 0.027),
    ("vgg16", NOOP): (None, None, None, 0.001, 0.000, 0.000),
    ("vgg16", FULL): (None, 0.004, 0.006, 0.004, 0.003, 0.003),
}
"""Table A.1: hours to 2% close to the optimum."""

UNET3D_SHARE, UNET3D_OVERHEAD = 0.54, 0.0886
"""A.3: memory of PyTorch's, and overhead there."""


def hours(
    table: Mapping[tuple[str, str], Hours], network: str, plans: str, budget_gb: int
) -> float | None:
    """Return the hours of a cell, or None where the table has none."""
    return table[network, plans][BUDGETS_GB.index(budget_gb)]


def solved(plans: str) -> set[tuple[str, int]]:
    """Return the cells (network, budget in GB) that the paper solves (Table 4.4)."""
    return {
        (network, budget_gb)
        for (network, kind), times in TO_5_PERCENT.items()
        for budget_gb, time in zip(BUDGETS_GB, times, strict=True)
        if kind == plans and time is not None
    }
