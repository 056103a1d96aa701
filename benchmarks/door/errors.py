"""Errors: public classes that no test expects."""

from benchmarks.harness import Report
from benchmarks.instruments.error_classes import untested_error_classes


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {"error-classes-untested": "<=0"}


def measure(report: Report, *, quick: bool) -> None:
    """Read the tests."""
    del quick
    untested = untested_error_classes()
    for name in untested:
        report.row("error classes without a test", name=name)
    report.bar("error-classes-untested", len(untested))
