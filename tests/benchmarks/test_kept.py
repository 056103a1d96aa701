"""Rows of an interrupted run: found again, without one that was cut off."""

from pathlib import Path

import pytest

from benchmarks import kept
from benchmarks.harness import Report, arguments
from benchmarks.kept import KeptRows


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROOT", tmp_path)


def test_a_run_goes_on_after_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = KeptRows("claim", "section", quick=False, quiet=("times",))
    first.add("a", {"ms": 1.5, "times": [1, 2]})
    first.add("b", {"ms": 2.5, "times": [3]})
    assert "times" not in capsys.readouterr().err
    path = tmp_path / "claim" / "results" / "section-full.jsonl"
    path.write_text(path.read_text()[:-3])
    second = KeptRows("claim", "section", quick=False)
    assert second.rows == {"a": {"ms": 1.5, "times": [1, 2]}}
    second.add("b", {"ms": 3.5})
    assert list(KeptRows("claim", "section", quick=False).rows) == ["a", "b"]
    assert KeptRows("claim", "section", quick=True).rows == {}


def test_a_run_goes_on_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    options = arguments("", ["--state", str(tmp_path / "state")])
    report = Report("claim", bars={}, options=options, folder=tmp_path / "results")
    KeptRows("claim", "section", quick=False, folder=report.state_folder).add("a", {"ms": 1})
    assert (tmp_path / "state" / "section-full.jsonl").exists()
    assert KeptRows("claim", "section", quick=False).rows == {}
    here = Report("claim", bars={}, options=arguments("", []), folder=tmp_path / "results")
    assert here.state_folder == tmp_path / "results"


def test_a_run_that_has_ended_leaves_none() -> None:
    rows = KeptRows("claim", "section", quick=True)
    rows.add("a", {})
    rows.clear()
    assert KeptRows("claim", "section", quick=True).rows == {}
    KeptRows("claim", "other", quick=True).clear()
