"""``headrace index measure``: traces of every form become profiles, which are shown and drawn."""

import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from headrace.cli.main import main
from headrace.index.cli.measure import measure_trace_command
from headrace.index.measure.survey import SAMPLE
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.profile import IndexProfile

DOCS = Path(__file__).parents[3] / "docs"

KEYS = np.random.default_rng(8).integers(0, 2**60, 4000).astype(np.uint64)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    """Run a command, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_trace_is_measured_shown_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, profile = tmp_path / "trace.npz", tmp_path / "trace.profile"
    workload_trace(KEYS, Workload(erases=0.1)).save(trace)
    assert run(monkeypatch, "index", "measure", trace, "-o", profile) == 0
    found = IndexProfile.load(profile)
    assert found.provenance["source"] == "trace.npz"
    assert found.loaded == 2000
    assert run(monkeypatch, "show", profile) == 0
    shown = capsys.readouterr().out
    assert "2,000 uint64 at first" in shown
    assert "evenness" in shown
    assert run(monkeypatch, "report", profile, "-o", tmp_path / "page.html") == 0
    assert "Trace image" in (tmp_path / "page.html").read_text()


def test_keys_alone_get_the_workload_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, profile = tmp_path / "books_uint64", tmp_path / "books.profile"
    keys.write_bytes(np.uint64(len(KEYS)).tobytes() + KEYS.tobytes())
    options = ("--inserts", "0.2", "--erases", "0.1", "--loaded", "0.75", "--sample", "2K")
    assert run(monkeypatch, "index", "measure", keys, "-o", profile, *options) == 0
    found = IndexProfile.load(profile)
    assert found.loaded == 3000
    assert found.encoding.features["insert_share"] == pytest.approx(0.2, abs=0.03)
    assert len(found.sample.loaded) + len(found.sample) < 4000 < found.loaded + found.operations


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("trace.npz", b"no", (), "trace.npz: is not npz"),
        ("trace.npz", b"no", ("--sample", "10"), "sample is '10', needs at least 1000"),
        ("keys", b"\x01" + bytes(15), ("--inserts", "2"), "inserts is 2, needs 0 to 1"),
        ("keys", b"\x01" + bytes(15), (), "keys: 1 different ones, needs two"),
        (
            "keys",
            (3).to_bytes(8, "little") + np.arange(3, dtype=np.uint64).tobytes(),
            ("--loaded", "1", "--inserts", "0.5"),
            "loaded is 1 and inserts 0.5: all 3 keys exist at first and none is left to be "
            "inserted, so there are no operations; needs inserts 0, or loaded below 1",
        ),
    ],
)
def test_wrong_input_gets_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    options: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / name).write_bytes(content)
    output = tmp_path / "out"
    assert run(monkeypatch, "index", "measure", tmp_path / name, "-o", output, *options) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not output.exists()


def test_the_default_of_the_sample_is_the_one_in_help_and_docs() -> None:
    """Help and docs said 4M, the code 6M."""
    default = f"{SAMPLE // 10**6}M"
    hints = get_type_hints(measure_trace_command, include_extras=True)
    assert hints["sample"].__metadata__[0].show_default == default
    assert f"`--sample` ({default} keys" in (DOCS / "index.md").read_text()


def test_options_for_keys_alone_are_refused_for_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.npz"
    workload_trace(KEYS, Workload()).save(trace)
    measure = ("index", "measure", trace, "-o", tmp_path / "out")
    assert run(monkeypatch, *measure, "--inserts", "0.9") == 2
    assert "has operations: those of a workload are for keys" in " ".join(
        capsys.readouterr().err.split()
    )
    assert run(monkeypatch, *measure, "--seed", "3") == 0


def test_no_command_writes_to_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.npz"
    workload_trace(KEYS, Workload()).save(trace)
    content = trace.read_bytes()
    same = tmp_path / "folder" / ".." / "trace.npz"
    (tmp_path / "folder").mkdir()
    for command in (("measure", trace, "-o", same), ("adapt", trace, "--log", same)):
        assert run(monkeypatch, "index", *command) == 2
        assert "is read by this command, too" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, "report", trace, "-o", same) == 2
    assert trace.read_bytes() == content
    assert run(monkeypatch, "index", "adapt", trace, "--log", tmp_path / "none" / "log") == 2
    assert "there is no folder" in " ".join(capsys.readouterr().err.split())
