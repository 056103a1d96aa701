"""Minutes that the tests take, by capability: a plugin of pytest, and the summary of `make test`.

``pytest -p tests.minutes --minutes FILE`` adds one line of JSON to FILE: [elapsed, processor]
seconds by capability, of all tests (set-up and teardown included). Where several processes share
the tests, the elapsed seconds of all are divided by their number.

``python -m tests.minutes TIER FILE [TOTAL]`` prints the minutes of all lines, and fails where those
of a capability are more than 1.5 times its budget. The elapsed minutes of native and Python tests
together, which begin at the time in FILE's first line, are written to TOTAL, too.

What is held against a budget is processor time, of the tests and of the child processes that they
waited for, shared by two processors: other work on the same machine prolongs the elapsed time of a
test several times, but hardly its processor time. That of a slower processor, or of a virtual one
whose host is busy, is divided by how much longer a loop of additions takes there. Waiting does not
count, nor do children that nothing waits for: that the elapsed time stays within bounds is seen in
TOTAL.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

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

ADDITIONS = 100_000
"""Of the loop that tells how fast a processor is; once in so many tests of a process."""
TESTS_PER_LOOP = 64
ADDITION_S = 50e-9
"""Of one addition of the loop, on the processor that the budgets are meant for."""
SLOWDOWN = "slowdown"
"""Field of a line: time of an addition over `ADDITION_S`."""

TOLERANCE = 1.5
"""Ratio to a budget above which it is an error."""


def capability(nodeid: str) -> str:
    """Return the capability of a test, by its path from the project's folder."""
    return next((name for name in CAPABILITIES if nodeid.startswith(f"tests/{name}/")), SHARED)


def processor_s() -> float:
    """Return the processor time of this process, of the children that it waited for, and of ranks.

    Most ranks are no children, but forks of a process that has torch imported.
    """
    return sum(os.times()[:4]) + warm.processor_s()


def addition_s() -> float:
    """Return the processor time in seconds that an addition takes at present."""
    began, total = time.thread_time(), 0
    for number in range(ADDITIONS):
        total += number
    return (time.thread_time() - began) / ADDITIONS


class Processor:
    """Notes in each report the processor time since the one before, in the process of the test."""

    def __init__(self) -> None:
        self._before = 0.0
        self._tests = 0
        self._addition_s: float | None = None

    def pytest_runtest_logstart(self) -> None:
        if self._tests % TESTS_PER_LOOP == 0:
            self._addition_s = addition_s()
        self._tests += 1
        self._before = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self._before = self._before, processor_s()
        vars(report)["processor_s"] = self._before - before  # carried along by xdist
        vars(report)["addition_s"], self._addition_s = self._addition_s, None
        return report


class Minutes:
    """Collects the durations of one run of pytest, and adds its line to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._elapsed: defaultdict[str, float] = defaultdict(float)
        self._processor: defaultdict[str, float] = defaultdict(float)
        self._processes: set[str] = set()
        self._additions_s: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = capability(report.nodeid)
        self._elapsed[name] += report.duration
        self._processor[name] += getattr(report, "processor_s", 0.0)  # a crash has none
        self._processes.add(getattr(report, "worker_id", "the only one"))
        if (addition := getattr(report, "addition_s", None)) is not None:
            self._additions_s.append(addition)

    def pytest_sessionfinish(self) -> None:
        spent: dict[str, Any] = {
            name: [elapsed / len(self._processes), self._processor[name]]
            for name, elapsed in self._elapsed.items()
        }
        if self._additions_s:
            spent[SLOWDOWN] = mean(self._additions_s) / ADDITION_S
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


def main(arguments: Sequence[str]) -> int:
    """Print the summary of a file, and write the total where a second path is given."""
    tier, seconds, *totals = arguments
    began, *runs = (json.loads(line) for line in Path(seconds).read_text().splitlines())
    minutes: dict[str, list[float]] = {}
    slowest = 1.0
    for run in runs:
        slowdown = max(1.0, run.pop(SLOWDOWN, 1.0))
        slowest = max(slowest, slowdown)
        for name, (elapsed, processor) in run.items():
            known = minutes.setdefault(name, [0.0, 0.0])
            known[0] += elapsed / 60
            known[1] += processor / 60 / PROCESSORS / slowdown
    total = (time.time() - began["began"]) / 60
    lines = summary(tier, minutes, total)
    if slowest > 1:
        lines[0] += f"; processors here take {slowest:.1f} times as long"
    print("\n".join(lines))
    for path in totals:
        Path(path).write_text(f"{total:.2f}\n")
    return len(lines) > 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
