"""torch's own tests of distributed backends with headrace in Gloo's place."""

from benchmarks.harness import Report
from benchmarks.instruments.torch_suite import DIFFERENCES, run_suite

PASSED = "torch-suite-passed"


def bars() -> dict[str, str]:
    """Return the bar: tests of torch's `distributed_test` that pass, of 90 that run on a CPU."""
    return {PASSED: ">=89"}


def measure(report: Report, *, quick: bool) -> None:  # noqa: ARG001 - it has one size
    """Run the suite, and list what fails."""
    result = run_suite()
    report.row(
        "torch's distributed_test",
        passed=len(result.passed),
        failed=len(result.failed),
        skipped=len(result.skipped),
    )
    for name, text in result.failed.items():
        report.note(f"{name} failed: {DIFFERENCES.get(name) or text[-300:]}")
    report.bar(PASSED, len(result.passed))
