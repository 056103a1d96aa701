"""``headrace index``: a trace is measured, planned and run; the plan is shown and verified."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.main import main
from headrace.index.configuration import Configuration
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.plan.plan import IndexPlan
from headrace.index.trace import FIND, Trace

KEYS = np.random.default_rng(9).normal(0, 1e12, 20_000).astype(np.int64)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    """Run a command, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workload_trace(KEYS, Workload(erases=0.1, scans=0.01)).save(tmp_path / "trace.npz")
    monkeypatch.chdir(tmp_path)
    # it changes malloc for the rest of a process
    monkeypatch.setattr("headrace.index.run.trial.keep_memory", lambda _trace: None)
    assert run(monkeypatch, "index", "measure", "trace.npz", "-o", "profile") == 0
    return tmp_path


def test_a_trace_is_planned_run_and_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("index", "plan", "profile", "-o", "plan", "--top", "4")
    assert run(monkeypatch, *plan) == 0
    trials = r"by \d+ trials?( \(spread \d+%\))?\."
    assert re.search(rf"M operations/s and \S+ bytes per key, {trials}", capsys.readouterr().out)
    made = IndexPlan.load(folder / "plan")
    assert sum(each.trials > 0 for each in made.candidates) == 4
    assert sum(made.chosen.leaves) > 0
    assert made.provenance["profile"]["source"] == "trace.npz"
    assert run(monkeypatch, "index", "run", "trace.npz", "--plan", "plan") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert made.configuration.name in shown
    checked = re.search(r"([\d,]+) keys found or scanned, none wrong", shown)
    assert checked
    assert int(checked[1].replace(",", "")) > 5000
    assert run(monkeypatch, "verify", "plan") == 0
    assert "predictions computed again" in capsys.readouterr().out
    assert run(monkeypatch, "show", "plan") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "runner-up" in shown
    assert re.search(r"machine\W+(busy|idle): ", shown)
    assert run(monkeypatch, "report", "plan", "-o", "page.html") == 0
    assert "Pareto front" in (folder / "page.html").read_text()


def test_without_trials_and_with_a_cap(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("index", "plan", "profile", "-o", "plan")
    assert run(monkeypatch, *plan, "--no-trial") == 0
    assert "predicted." in capsys.readouterr().out
    made = IndexPlan.load(folder / "plan")
    least = min(each.predicted_bytes_per_key for each in made.candidates)
    assert run(monkeypatch, *plan, "--no-trial", "--bytes-per-key", least * 1.05) == 0
    capped = IndexPlan.load(folder / "plan")
    assert capped.chosen.predicted_bytes_per_key <= least * 1.05
    capsys.readouterr()
    assert run(monkeypatch, *plan, "--no-trial", "--bytes-per-key", "1") == 2
    assert "the cap is 1 bytes per key, no conf" in " ".join(capsys.readouterr().err.split())
    for option in (("--top", 2), ("--frontier",)):  # had no effect
        assert run(monkeypatch, *plan, "--no-trial", *option) == 2
        assert f"{option[0]} has no effect with --no-trial" in " ".join(
            capsys.readouterr().err.split()
        )


def test_a_run_takes_keys_alone_and_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "keys.npy", KEYS)
    assert run(monkeypatch, "index", "run", "keys.npy", "--inserts", "0", "--window", "1000") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"configuration {Configuration().name} loaded" in shown
    assert "hashed" in shown


def test_a_trace_without_operations_is_planned_without_trials(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Trace.of(KEYS[:0], np.zeros(0, dtype=np.uint8), KEYS).save(folder / "none.npz")
    assert run(monkeypatch, "index", "measure", "none.npz", "-o", "profile") == 0
    assert run(monkeypatch, "index", "plan", "profile", "-o", "plan") == 0
    assert "predicted." in capsys.readouterr().out
    for option in (("--top", 2), ("--frontier",)):  # had no effect
        assert run(monkeypatch, "index", "plan", "profile", "-o", "plan", *option) == 2
        assert f"{option[0]} has no effect on a profile without" in capsys.readouterr().err


def test_a_frontier_needs_keys(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where finds find nothing, it ended behind all trials, and the error named no option."""
    finds = np.full(len(KEYS), FIND, dtype=np.uint8)
    Trace.of(KEYS, finds, KEYS[:0]).save(folder / "absent.npz")
    assert run(monkeypatch, "index", "measure", "absent.npz", "-o", "profile") == 0
    assert run(monkeypatch, "index", "plan", "profile", "-o", "plan", "--frontier") == 2
    assert "leave it out (--frontier)" in " ".join(capsys.readouterr().err.split())


def test_another_artifact_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "index", "run", "trace.npz", "--plan", "profile") == 2
    assert "make one with headrace index plan" in " ".join(capsys.readouterr().err.split())


def test_an_adapted_run_prints_its_events(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "index", "adapt", "trace.npz", "--repeats", "3", "--log", "log") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"throughput \S+ M operations/s, [\d,]+ in", shown)
    assert "by tenths" in shown


def test_a_run_too_short_to_adapt_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Trace.of(KEYS[:8], np.full(8, FIND, dtype=np.uint8), KEYS).save(folder / "short.npz")
    assert run(monkeypatch, "index", "adapt", "short.npz") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"No events: the run took .*, which looks every 0\.1 s.*--repeats", shown)
