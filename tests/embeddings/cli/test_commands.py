"""The commands, from made clicks to a page."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.embeddings import EmbeddingProfile, Synchronisation
from headrace.job.load import MachineLoad
from tests.waiting import HANG_S, wait_until

RUN = CliRunner()


def invoke(*arguments: object, code: int = 0) -> str:
    result = RUN.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code == 0 else str(result.exception)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embeddings") / "clicks.tsv"
    output = invoke(
        *("embeddings", "generate", "-o", path, "--examples", 3000, "--most-rows", 1000)
    )
    assert output.startswith("Wrote")
    assert path.read_bytes().count(b"\n") == 3000
    assert list(path.parent.iterdir()) == [path]
    return path


def test_measured_clicks_are_shown_and_drawn(
    clicks: Path, tmp_path: Path, figures: list[dict]
) -> None:
    profile = tmp_path / "profile"
    output = invoke(
        *("embeddings", "measure", clicks, "-o", profile, "--batch", 100, "--lookahead", 10)
    )
    loaded = EmbeddingProfile.load(profile)
    assert (loaded.batches, loaded.batch, loaded.lookahead) == (20, 100, 10)
    shown = invoke("show", profile)
    for text in (output, shown):
        assert f"{loaded.transfers[Synchronisation.TARGETED].critical_rows:,.0f}" in text
        assert f"{loaded.fetched(5):,.0f}" in text
    load = MachineLoad.from_provenance(loaded.provenance)
    assert load is not None
    assert load.text in shown
    invoke("verify", profile, code=1)
    page = tmp_path / "profile.html"
    invoke("report", profile, "-o", page)
    assert "Rows between trainers a step" in page.read_text()
    assert {trace["name"] for trace in figures[0]["data"]} == {"fetched a step", "in the cache"}


def test_made_clicks_leave_files_beside_them_alone(tmp_path: Path) -> None:
    """They were written to FILE.partial first: a user's file of that name was lost."""
    output, other = tmp_path / "clicks.tsv", tmp_path / "clicks.tsv.partial"
    other.write_text("a user's")
    invoke("embeddings", "generate", "-o", output, "--examples", 10, "--most-rows", 100)
    assert other.read_text() == "a user's"
    assert sorted(tmp_path.iterdir()) == [output, other]


def test_made_clicks_leave_nothing_where_they_are_terminated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "embeddings", "generate", "--examples", "30M"]
    with subprocess.Popen([*command, "-o", tmp_path / "clicks.tsv"]) as process:
        wait_until(lambda: any(tmp_path.iterdir()), "the first examples")
        process.terminate()
        assert process.wait(HANG_S) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_a_command_leaves_the_signal_handlers_as_they_were(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    output = tmp_path / "clicks.tsv"
    assert not RUN.invoke(app, ["embeddings", "generate", "-o", str(output)]).exit_code
    assert signal.getsignal(signal.SIGTERM) is before


def test_wrong_input_is_named(clicks: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    generate = ("embeddings", "generate", "-o", output)
    measure = ("embeddings", "measure", clicks, "-o", output)
    assert "skew is 'x'" in invoke(*generate, "--skew", "x", code=1)
    assert "--examples is 'x'" in invoke(*generate, "--examples", "x", code=1)
    assert "--examples is '0', needs 1 or more" in invoke(*generate, "--examples", "0", code=1)
    assert "--batch is '-4'" in invoke(*measure, "--batch=-4", code=1)
    assert "needs four or more" in invoke(*measure, "--batch", 1500, code=1)
    assert "line 1: has 40 columns, needs 39" in invoke(*measure, "--unlabelled", code=1)
    assert "is read as criteo: --ids is for columns" in invoke(*measure, "--ids", "C1", code=1)
    avazu = (*measure, "--format", "avazu", "--unlabelled")
    assert "is read as avazu: --unlabelled is for lines" in invoke(*avazu, code=1)
    assert not list(tmp_path.iterdir())


def test_the_examples_are_not_overwritten(clicks: Path, tmp_path: Path) -> None:
    before = clicks.read_bytes()
    profile, link = tmp_path / "profile", tmp_path / "link"
    link.hardlink_to(clicks)
    for output, rejects in ((clicks, tmp_path / "rejects"), (profile, clicks), (profile, link)):
        arguments = ("embeddings", "measure", clicks, "-o", output, "--rejects", rejects)
        assert "is read by this command, too" in invoke(*arguments, "--batch", 100, code=1)
    assert clicks.read_bytes() == before


def test_a_file_of_a_folder_of_examples_is_not_overwritten(clicks: Path, tmp_path: Path) -> None:
    day, rejects = tmp_path / "day_0", tmp_path / "rejects"
    day.write_bytes(clicks.read_bytes())
    measure = ("embeddings", "measure", tmp_path, "--batch", 100)
    said = "is read by this command, too"
    assert said in invoke(*measure, "-o", day, code=1)
    assert said in invoke(*measure, "-o", tmp_path / "profile", "--rejects", day, code=1)
    assert "is written twice" in invoke(*measure, "-o", rejects, "--rejects", rejects, code=1)
    assert day.read_bytes() == clicks.read_bytes()
    assert list(tmp_path.iterdir()) == [day]


def test_a_full_disk_is_named_and_leaves_no_part(clicks: Path, tmp_path: Path) -> None:
    """Files of this process are limited to some kilobytes, as on a disk that is full."""
    output, rejects = tmp_path / "clicks.tsv", tmp_path / "rejects"
    wrong = tmp_path / "wrong.tsv"
    wrong.write_bytes(clicks.read_bytes().replace(b"\t", b" "))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        said = invoke("embeddings", "generate", "-o", output, code=1)
        arguments = ("--rejects", rejects, "--most-rejected", 1, "-o", tmp_path / "profile")
        refused = invoke("embeddings", "measure", wrong, *arguments, "--format", "criteo", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said == f"{output}: cannot be written: File too large"
    assert refused == f"{rejects}: cannot be written: File too large"
    assert {path.name for path in tmp_path.iterdir()} == {"rejects", "wrong.tsv"}


@pytest.mark.parametrize(
    ("name", "tables", "said"),
    [
        ("criteo", 26, "read as criteo: its first line has tabs"),
        ("avazu", 21, "read as avazu: its first line is a header"),
        ("parquet", 26, "read as parquet: it begins with PAR1"),
    ],
)
def test_files_of_every_format_are_made_and_measured(
    tmp_path: Path, name: str, tables: int, said: str
) -> None:
    clicks, profile = tmp_path / "clicks", tmp_path / "profile"
    skews = ("--skew", "top:0.9", "--later-skew", "uniform")
    generate = ("--examples", 400, "--most-rows", 5000, "--format", name)
    invoke("embeddings", "generate", "-o", clicks, *generate, *skews)
    measure = ("embeddings", "measure", clicks, "-o", profile, "--batch", 50, "--lookahead", 3)
    ids: tuple[str, ...] = ()
    if name == "parquet":
        assert "--ids needs names" in invoke(*measure, code=1)
        ids = ("--ids", "C*")
    assert said in invoke(*measure, *ids)
    loaded = EmbeddingProfile.load(profile)
    assert len(loaded.tables) == tables
    assert loaded.provenance["format"] == name
    wrong = "avazu" if name == "criteo" else "criteo"
    assert f"{clicks}: line 1" in invoke(*measure, "--format", wrong, code=1)


def test_a_plan_predicts_a_step_and_is_proved(
    clicks: Path, tmp_path: Path, figures: list[dict]
) -> None:
    profile, plan, page = (tmp_path / name for name in ("profile", "plan", "page.html"))
    measure = ("embeddings", "measure", clicks, "-o", profile, "--batch", 100, "--lookahead", 8)
    invoke(*measure, "--dim", 8)
    assert min(EmbeddingProfile.load(profile).processor_seconds) > 0
    planning = ("embeddings", "plan", profile, "-o", plan, "--dim", 8, "--dense", "2K")
    assert "time of a step" not in invoke(*planning)
    # more than anything measured takes on a busy machine
    output = invoke(*planning, "--compute", "5s", "--bandwidth", "1Gbit/s")
    for text in (output, invoke("show", plan)):
        assert "bound by trainers' loop" in text
        assert "server's link" in text
        assert "gradients of the dense part" in text
    assert invoke("verify", plan).startswith("ok")
    invoke("report", plan, "-o", page)
    assert "Time of a step by resource, predicted" in page.read_text()
    assert [trace["name"] for trace in figures[0]["data"]] == ["busy"]
    for times in ([], ["--compute", "5ms"]):  # without times, a wrong rate passed unread
        assert "--bandwidth is 'fast'" in invoke(*planning, *times, "--bandwidth", "fast", code=1)
    network = ("--topology", tmp_path / "network", "--bandwidth", "1Gbit/s")
    assert "--bandwidth has no effect with --topology" in invoke(
        *planning, "--compute", "5ms", *network, code=1
    )
    for ignored in (network[2:], ("--processors", 2), ("--failures", "1h")):
        refused = invoke(*planning, *ignored, code=1)
        assert f"{ignored[0]} has no effect without --compute" in refused
    invoke(*measure, "--no-rates")
    assert "was made from the profile" in invoke("verify", plan, code=1)
