"""The command line: JSON and an example of every verb, and one meaning of every option."""

from benchmarks.harness import Report
from benchmarks.instruments.command_line import (
    options_with_two_meanings,
    verbs_without_example,
    verbs_without_json,
)

BARS = ("verbs-without-json", "verbs-without-example", "options-with-two-meanings")


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return dict.fromkeys(BARS, "<=0")


def measure(report: Report, *, quick: bool) -> None:
    """Ask the registered commands."""
    del quick  # all of it is quick
    lacking = (verbs_without_json(), verbs_without_example(), sorted(options_with_two_meanings()))
    for name, verbs in zip(BARS, lacking, strict=True):
        report.row("command line", bar=name, names=", ".join(verbs) or "none")
        report.bar(name, len(verbs))
