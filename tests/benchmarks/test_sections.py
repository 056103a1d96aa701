"""Benchmarks of several sections: which are run, and what one that breaks leaves of the others."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

import benchmarks.compression.run
import benchmarks.executor.run
import benchmarks.index.run
import benchmarks.memory.run
import benchmarks.network.run
import benchmarks.synthesis.run
from benchmarks import harness, termination
from benchmarks.harness import Options, Report
from benchmarks.sections import not_in_quick, parse, run_sections, section_name
from headrace.testbed.teardown import start_time

RUNS = (
    benchmarks.compression.run,
    benchmarks.executor.run,
    benchmarks.index.run,
    benchmarks.memory.run,
    benchmarks.network.run,
    benchmarks.synthesis.run,
)


class Fake:
    """A section with one bar, whose figure is 1, or which breaks, or skips it if quick."""

    def __init__(
        self, name: str, *, breaks: bool = False, skips: bool = False, full_only: bool = False
    ) -> None:
        self.__name__ = f"benchmarks.claim.{name}"
        self.FULL_ONLY = full_only
        self._bar, self._breaks = name, breaks
        self.quick: bool | None = None
        if skips:
            self.NOT_IN_QUICK = frozenset({name})

    def bars(self) -> dict[str, str]:
        return {self._bar: ">=1"}

    def measure(self, report: Report, *, quick: bool) -> None:
        self.quick = quick
        if self._breaks:
            raise OSError("no such link")
        if self._bar not in not_in_quick(self) or not quick:
            report.bar(self._bar, 1.0)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_one_section_can_be_asked_for(run: ModuleType) -> None:
    for section in run.SECTIONS:
        name = section_name(section)
        assert parse("", run.SECTIONS, ["--only", name]) == (Options(), (section,))
    assert parse("", run.SECTIONS, ["--quick", "--keep"]) == (
        Options(quick=True, keep=True),
        run.SECTIONS,
    )
    with pytest.raises(SystemExit):
        parse("", run.SECTIONS, ["--only", "nothing"])


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_no_two_sections_declare_the_same_bar(run: ModuleType) -> None:
    names = [name for section in run.SECTIONS for name in section.bars()]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_bars_that_quick_leaves_out_are_the_sections_own(run: ModuleType) -> None:
    for section in run.SECTIONS:
        assert not_in_quick(section) <= set(section.bars())


@pytest.mark.parametrize("quick", [True, False])
def test_a_section_declares_what_quick_leaves_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quick: bool,
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    sections = (Fake("first", breaks=True), Fake("middle"), Fake("last", skips=True))
    assert run_sections("claim", None, sections, ["--quick"] if quick else []) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "BAR first unmeasured required >=1 SHORT",
        "BAR middle 1 required >=1 ok",
        f"BAR last {'unmeasured required >=1 skipped' if quick else '1 required >=1 ok'}",
    ]


def test_one_that_breaks_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    first, last = Fake("first", breaks=True), Fake("last")
    assert run_sections("claim", None, (first, last), ["--quick"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-2:] == [
        "BAR first unmeasured required >=1 SHORT",
        "BAR last 1 required >=1 ok",
    ]
    assert "Traceback" in said.err
    (path,) = (tmp_path / "claim" / "results").glob("*.json")
    assert json.loads(path.read_text())["notes"] == [
        "benchmarks.claim.first stopped: OSError: no such link"
    ]
    assert (first.quick, last.quick) == (True, True)


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_run_says_which_sections_it_leaves_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quick: bool,
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    first, last = Fake("first"), Fake("last", full_only=True)
    assert run_sections("claim", None, (first, last), ["--quick"] if quick else []) == 0
    assert (first.quick, last.quick) == (quick, None if quick else False)
    out = capsys.readouterr().out
    left_out = "left out of a quick run, without QUICK=1 they are measured: last"
    assert (left_out in out) == quick
    assert f"BAR last {'unmeasured required >=1 skipped' if quick else '1 required >=1 ok'}" in out


def test_a_section_that_is_not_asked_for_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    first, last = Fake("first"), Fake("last")
    assert run_sections("claim", None, (first, last), ["--only", "last"]) == 0
    assert (first.quick, last.quick) == (None, False)
    assert "first" not in capsys.readouterr().out


class RunsACommand(Fake):
    """A section whose command, run in this process, is at work when SIGTERM arrives."""

    def __init__(self, child: Path) -> None:
        super().__init__("only")
        self.child, self.ended_command = child, False

    def measure(self, report: Report, *, quick: bool) -> None:
        # a shell that waits for another: the one that is left when its parent is killed
        script = f"sleep 600 & echo $! > {self.child}.part; mv {self.child}.part {self.child}; wait"

        def command() -> None:
            with subprocess.Popen(["sh", "-c", script]) as process:
                while not self.child.exists():
                    assert process.poll() is None
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()

        app = typer.Typer()
        app.command()(command)
        CliRunner().invoke(app, [])
        self.ended_command = True


def test_sigterm_within_a_command_ends_the_run_and_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command took the exit for its own, and the run went on with the next one."""
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(termination, "_GRACE_S", 0.2)
    section = RunsACommand(tmp_path / "child")
    with subprocess.Popen(["sleep", "600"]) as earlier:
        with pytest.raises(SystemExit) as ended:
            run_sections("claim", None, (section,), ["--quick"])
        assert earlier.poll() is None  # a process of before the run goes on
        earlier.kill()
    assert ended.value.code == 128 + signal.SIGTERM
    assert not section.ended_command
    assert start_time(int(section.child.read_text())) is None


def test_sigterm_ends_a_run_as_an_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Fake):
        def measure(self, report: Report, *, quick: bool) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    monkeypatch.setattr(harness, "ROOT", tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run_sections("claim", None, (Ended("only"),), ["--quick"])
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_was_started_is_found_by_any_name() -> None:
    """A process of any user's whose name is no UTF-8 kept every benchmark from beginning."""
    script = (
        "import time; from pathlib import Path;"
        "Path('/proc/self/comm').write_bytes(b'model-\\xc3'); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert process.pid in termination.descendants(os.getpid())
        finally:
            process.kill()
