"""``--json``: one object on standard output, errors as one object, and nothing else there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.instruments.command_line import examples
from headrace.cli.app import app
from headrace.cli.main import main, prints_json

PROGRAM = """
import os, subprocess, sys
from dataclasses import dataclass
import typer
from headrace.cli.answers import with_json
from headrace.cli.console import terminal

@dataclass(frozen=True)
class Result:
    exit_code: int

def command() -> Result:
    print("of a user's function")
    terminal().print("a table")
    terminal(stderr=True).print("a warning")
    os.write(1, b"of native code\\n")
    subprocess.run(["echo", "of a child process"])
    return Result(exit_code=3)

app = typer.Typer()
app.command()(with_json(command, "index plan"))
app()
"""


def test_what_is_printed_on_the_way_goes_to_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--json"], capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout) == {
        "verb": "index plan",
        "version": 1,
        "result": {"exit_code": 3},
    }
    assert done.returncode == 3
    for line in ("user's function", "native code", "child process", "a warning"):
        assert line in done.stderr
    assert "a table" not in done.stderr


def test_without_it_the_same_verb_prints_its_tables_and_has_its_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert "a table" in done.stdout
    assert "{" not in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (("show", "no.plan"), "ArtifactError", "no.plan: cannot be read"),
        (("show",), "UsageError", "Missing argument 'FILE'"),
        (("show", "x", "--al"), "UsageError", "--all"),
        (("shwo", "x"), "UsageError", "show"),
        (("index", "plan", "x", "-o", "y", "--top", "0"), "UsageError", "--top"),
    ],
)
def test_an_error_is_one_object_with_the_exit_code(
    arguments: tuple[str, ...],
    kind: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments, "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    streams = capsys.readouterr()
    assert streams.out == ""
    error = json.loads(streams.err.splitlines()[-1])["error"]
    assert error["type"] == kind
    assert says in error["message"]
    assert error["exit_code"] == end.value.code == 2


STANDS_ALONE = {
    *("compression plan", "demo", "doctor", "embeddings generate", "memory estimate", "schema"),
    *("testbed down", "testbed status", "topology preset", "topology presets"),
    "collectives trace",
}
"""Verbs whose example reads no file, and needs no testbed."""


@pytest.mark.slow
def test_an_example_without_its_files_is_one_error_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, commands in examples().items():
        if path in STANDS_ALONE:
            continue
        (words,) = (words for words in commands if words[: len(path.split())] == path.split())
        place = words.index("--") if "--" in words else len(words)
        monkeypatch.setattr(sys, "argv", ["headrace", *words[:place], "--json", *words[place:]])
        with pytest.raises(SystemExit) as end:
            main()
        streams = capsys.readouterr()
        assert streams.out == "", path
        error = json.loads(streams.err.splitlines()[-1])["error"]
        assert error["exit_code"] == end.value.code == 2, f"{path}: {error}"
        assert "\n" not in error["message"], path
        assert list(tmp_path.iterdir()) == [], path


@pytest.mark.parametrize("python", [(), ("-u",)])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk_and_a_closed_pipe_are_no_tracebacks(
    options: tuple[str, ...], python: tuple[str, ...]
) -> None:
    command = [sys.executable, *python, "-m", "headrace", "topology", "presets", *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_closed_streams_are_no_tracebacks_and_no_file_takes_their_place(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """A verb wrote to sys.stdout, which is None where the caller closed it, as by '>&-'."""
    output = tmp_path / "ring.topology"
    command = (*("topology", "preset", "ring", "--ranks", "4", "-o", str(output)), *options)
    closing = f'exec {sys.executable} -m headrace "$@" <&- >&-'
    done = subprocess.run(
        ["bash", "-c", closing, "-", *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert output.exists()


def test_a_commands_own_json_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words after '--' are another program's."""
    monkeypatch.setattr(sys, "argv", ["headrace", "testbed", "exec", "a", "--", "ip", "--json"])
    assert not prints_json()


def test_a_verb_of_a_capability_is_named_by_its_last_word() -> None:
    outcome = CliRunner().invoke(app, ["synthesise"], env={"COLUMNS": "200"})
    assert outcome.exit_code == 2
    assert "headrace collectives synthesize" in outcome.output


def test_short_help() -> None:
    outcome = CliRunner().invoke(app, ["topology", "presets", "-h"], env={"COLUMNS": "200"})
    assert outcome.exit_code == 0
    assert "Example: headrace topology presets" in outcome.output


def test_a_table_does_not_wrap_where_there_is_no_terminal() -> None:
    outcome = CliRunner().invoke(app, ["topology", "presets"], env={"COLUMNS": "40"})
    lines = outcome.stdout.splitlines()
    assert max(map(len, lines)) > 100
    assert all(line[0] != " " for line in lines)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_names_that_the_streams_cannot_print_are_escaped(
    tmp_path: Path, options: tuple[str, ...], encoding: str
) -> None:
    """They were a traceback, after the file was written."""
    path = tmp_path / os.fsdecode("\u6d41ü".encode() + b"\xff.topology")
    command = [sys.executable, "-m", "headrace", "topology", "preset", "dgx1", "-o", path, *options]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert path.exists()
    text = done.stdout.decode(encoding)
    if options:
        assert json.loads(text)["result"]["file"]["path"] == str(path)
    else:
        assert "\\udcff.topology" in text
