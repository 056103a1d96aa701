"""Wrong answers of headrace in all sections; its section comes last."""

from benchmarks.harness import Report

_counted: list[int] = []


def count(wrong: int) -> None:
    """Add the wrong answers of a measurement, of which 0 is one too."""
    _counted.append(wrong)


def bars() -> dict[str, str]:
    return {"wrong-answers": "<= 0"}


def measure(report: Report, *, quick: bool) -> None:
    del quick
    report.bar("wrong-answers", sum(_counted) if _counted else None)
