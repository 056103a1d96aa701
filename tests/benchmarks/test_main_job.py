"""The main job's bars: every one is given a figure, but for those that QUICK leaves out."""

import runpy
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness import ROOT, Options, Report
from headrace.collectives.demand import Collective

JOB = runpy.run_path(str(ROOT / "main-job" / "run.py"))


class Canned(JOB["MainJob"]):
    """A job whose measurements are all 1."""

    def prepare(self, order):
        self.preparing_s.append(1.0)

    def native(self, order, book, cases):
        for case in cases:
            allreduce = case.collective is Collective.ALLREDUCE
            self.errors[allreduce].append(1.0)
            if allreduce and case.bytes in self.of_limit:
                self.of_limit[case.bytes].append(1.0)
            self.latency_ms.append(1.0)

    def torch(self, order, sizes):
        return defaultdict(lambda: 1.0)

    def loopback(self, size, repeats):
        return 1.0

    def demo(self):
        return 1.0


@pytest.mark.parametrize("quick", [True, False])
def test_bars_are_given_but_for_those_that_quick_leaves_out(tmp_path: Path, quick: bool) -> None:
    options = Options(quick=quick)
    report = Report("main-job", bars=JOB["BARS"], options=options, folder=tmp_path)
    given: list[str] = []
    report.bar = lambda name, figure: given.append(name)
    JOB["run"](Canned(report, SimpleNamespace(), options, tmp_path))
    assert set(given) == set(JOB["BARS"]) - (JOB["NOT_IN_QUICK"] if quick else set())
    assert len(JOB["NOT_IN_QUICK"]) == 3
