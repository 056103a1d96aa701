"""Minutes that the tests take, by capability: a plugin of pytest, and the summary of `make test`.

``pytest -p tests.minutes --minutes FILE`` adds one line of JSON to FILE: [elapsed, processor]
seconds by capability, of all tests (set-up and teardown included). Where several processes share
the tests, the elapsed seconds of all are divided by their number.

``python -m tests.minutes TIER FILE [TOTAL]`` prints the minutes of all lines, and the capabilities
that took more than 1.5 times their budget. The elapsed minutes of native and Python tests together,
which begin at the time in FILE's first line, are written to TOTAL, with the number of budgets that
were exceeded. Neither is an error here, as a slow or busy machine takes several times as long: both
are bars of the benchmark `house`.

What is held against a budget is processor time, of the tests and of the child processes that they
waited for, shared by two processors: other work on the same machine prolongs it less than the
elapsed time of a test. Waiting does not count, nor do children that nothing waits for: that the
elapsed time stays within bounds is seen in TOTAL.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.conformance import warm

CAPABILITIES = ("attention", "collectives", "compression", "embeddings", "index", "memory")
"""Folders of `tests`; all other tests are of what capabilities share."""

SHARED = "shared"
BUDGETS = {
    "fast": {
        ("attention",): 1.0,
        ("collectives", SHARED): 4.5,
        ("compression",): 0.7,
        ("embeddings",): 1.0,
        ("index",): 0.5,
        ("memory",): 1.3,
    },
    "slow": {(*CAPABILITIES, SHARED): 60.0},
}
"""Minutes of some capabilities together, by tier; a new one of the fast tier has 1.5 at most."""

PROCESSORS = 2
"""That budgets are meant for."""

TOLERANCE = 1.5
"""Ratio to a budget above which it is exceeded."""


def capability(nodeid: str) -> str:
    """Return the capability of a test, by its path from the project's folder."""
    return next((name for name in CAPABILITIES if nodeid.startswith(f"tests/{name}/")), SHARED)


def processor_s() -> float:
    """Return the processor time of this process, of the children that it waited for, and of ranks.

    Most ranks are no children, but forks of a process that has torch imported.
    """
    return sum(os.times()[:4]) + warm.processor_s()


class Processor:
    """Notes in each report the processor time since the one before, in the process of the test."""

    def __init__(self) -> None:
        self._before = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._before = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self._before = self._before, processor_s()
        vars(report)["processor_s"] = self._before - before  # carried along by xdist
        return report


class Minutes:
    """Collects the durations of one run of pytest, and adds its line to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._elapsed: defaultdict[str, float] = defaultdict(float)
        self._processor: defaultdict[str, float] = defaultdict(float)
        self._processes: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = capability(report.nodeid)
        self._elapsed[name] += report.duration
        self._processor[name] += getattr(report, "processor_s", 0.0)  # a crash has none
        self._processes.add(getattr(report, "worker_id", "the only one"))

    def pytest_sessionfinish(self) -> None:
        spent = {
            name: [elapsed / len(self._processes), self._processor[name]]
            for name, elapsed in self._elapsed.items()
        }
        with self._path.open("a") as file:
            file.write(json.dumps(spent) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", metavar="FILE", help="add seconds by capability to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--minutes"):
        config.pluginmanager.register(Processor(), "processor time of tests")
        if not hasattr(config, "workerinput"):  # processes of xdist report to this one
            config.pluginmanager.register(Minutes(Path(path)), "minutes of capabilities")


def summary(tier: str, minutes: Mapping[str, Sequence[float]], total: float) -> list[str]:
    """Return the line to print, and one more for each budget that is far exceeded."""
    each = ", ".join(
        f"{name} {elapsed:.1f} ({processor:.1f} of processors)"
        for name, (elapsed, processor) in sorted(minutes.items())
    )
    lines = [f"minutes of tests: {each or 'none'}; native and Python together {total:.1f}"]
    for names, budget in BUDGETS[tier].items():
        spent = sum(minutes[name][1] for name in names if name in minutes)
        if spent > TOLERANCE * budget:
            lines.append(
                f"minutes of tests: {' and '.join(names)} {spent:.1f} of processors, "
                f"more than {TOLERANCE:g} times the budget of {budget:g}"
            )
    return lines


def main(arguments: Sequence[str]) -> None:
    """Print the summary of a file; write the total and the exceeded budgets to a second path."""
    tier, seconds, *totals = arguments
    began, *runs = (json.loads(line) for line in Path(seconds).read_text().splitlines())
    minutes: dict[str, list[float]] = {}
    for run in runs:
        for name, (elapsed, processor) in run.items():
            known = minutes.setdefault(name, [0.0, 0.0])
            known[0] += elapsed / 60
            known[1] += processor / 60 / PROCESSORS
    total = (time.time() - began["began"]) / 60
    lines = summary(tier, minutes, total)
    print("\n".join(lines))
    for path in totals:
        Path(path).write_text(f"{total:.2f} {len(lines) - 1}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
