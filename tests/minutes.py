"""Minutes that the tests take, by capability: a plugin of pytest, and the summary of `make test`.

``pytest -p tests.minutes --minutes FILE`` adds one line of JSON to FILE: elapsed seconds by
capability, from the durations of all tests (set-up and teardown included). Where several processes
share the tests, the sum over all of them is divided by their number.

``python -m tests.minutes FILE [TOTAL]`` prints the minutes of all lines; those of native and Python
tests together, which begin at the time in FILE's first line, are written to TOTAL, too.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

CAPABILITIES = ("collectives",)
"""Folders of `tests`; all other tests are of what capabilities share."""

SHARED = "shared"
BUDGETS = {("collectives", SHARED): 9.0}
"""Elapsed minutes."""

TOLERANCE = 1.5
"""Ratio to a budget above which it is reported."""


def capability(nodeid: str) -> str:
    """Return the capability of a test, by its path from the project's folder."""
    return next((name for name in CAPABILITIES if nodeid.startswith(f"tests/{name}/")), SHARED)


class Minutes:
    """Collects the durations of one run of pytest, and adds its line to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()
        self._processes: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[capability(report.nodeid)] += report.duration
        self._processes.add(getattr(report, "worker_id", "the only one"))

    def pytest_sessionfinish(self) -> None:
        elapsed = {name: s / len(self._processes) for name, s in self._seconds.items()}
        with self._path.open("a") as file:
            file.write(json.dumps(elapsed) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", metavar="FILE", help="add elapsed seconds by capability to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--minutes")
    if path and not hasattr(config, "workerinput"):  # processes of xdist report to this one
        config.pluginmanager.register(Minutes(Path(path)), "minutes of capabilities")


def summary(minutes: Mapping[str, float], total: float) -> list[str]:
    """Return the lines to print, one more for each budget that is far exceeded."""
    each = ", ".join(f"{name} {spent:.1f}" for name, spent in sorted(minutes.items()))
    lines = [f"minutes of tests: {each or 'none'}; native and Python together {total:.1f}"]
    for names, budget in BUDGETS.items():
        spent = sum(minutes.get(name, 0.0) for name in names)
        if spent > TOLERANCE * budget:
            lines.append(
                f"minutes of tests: {' and '.join(names)} {spent:.1f}, "
                f"more than {TOLERANCE:g} times the budget of {budget:g}"
            )
    return lines


def main(arguments: Sequence[str]) -> None:
    """Print the summary of a file, and write the total where a second path is given."""
    began, *runs = (json.loads(line) for line in Path(arguments[0]).read_text().splitlines())
    minutes: Counter[str] = Counter()
    for run in runs:
        minutes.update({name: seconds / 60 for name, seconds in run.items()})
    total = (time.time() - began["began"]) / 60
    print("\n".join(summary(minutes, total)))
    for path in arguments[1:]:
        Path(path).write_text(f"{total:.2f}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
