"""The command's manners: version, one-line errors, exit codes, interrupts."""

import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer

import headrace
from headrace.cli import app as commands
from headrace.cli.main import main
from headrace.errors import CommunicationError, HeadraceError, InputError, TopologyError
from tests.waiting import JOB_S


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=JOB_S,
    )


def exit_code(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> int:
    """Run the command with one sub-command, which raises `raised`."""
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise raised

    monkeypatch.setattr(commands, "app", app)
    monkeypatch.setattr(sys, "argv", ["headrace"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"headrace {headrace.__version__}\n")


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("collectives", "testbed", "show", "verify"):
        assert command in done.stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("colectives")
    assert done.returncode == 2
    assert "colectives" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_one_line_and_exit_code_2() -> None:
    done = run("show", "/no/such/file.plan")
    assert done.returncode == 2
    assert done.stderr.startswith("error: /no/such/file.plan: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", [False, True])
def test_an_error_of_the_system_is_not_put_down_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, *, unbuffered: bool
) -> None:
    """Of sockets, processes and open files such errors name no file.

    With PYTHONUNBUFFERED, as in many containers, all of them were.
    """
    output = io.TextIOWrapper(io.BytesIO(), write_through=True) if unbuffered else io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(OSError, match="Too many open files"):
        exit_code(monkeypatch, OSError(errno.EMFILE, "Too many open files"))


@pytest.mark.parametrize("name", ["/sys/x", b"/sys/x"])
def test_an_error_of_the_system_that_names_a_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str | bytes
) -> None:
    raised = PermissionError(errno.EACCES, "Permission denied", name)
    assert exit_code(monkeypatch, raised) == 1
    assert capsys.readouterr().err == "error: /sys/x: Permission denied\n"


def test_a_folder_that_was_removed_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names no file: it was a traceback, or put down to standard output."""
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        Path("x").absolute()
    assert exit_code(monkeypatch, raised.value) == 1
    assert capsys.readouterr().err == (
        "error: the folder that this was started in is gone: change to another\n"
    )


def test_a_machine_without_a_folder_for_temporary_files_is_told_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a container whose file system is for reading: it was a traceback of tempfile's."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/absent"])
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.gettempdir()
    assert exit_code(monkeypatch, raised.value) == 1
    assert capsys.readouterr().err == (
        "error: No usable temporary directory found in ['/absent']: export TMPDIR=FOLDER, with a "
        "folder that can be written\n"
    )


@pytest.mark.parametrize(
    ("raised", "refused"),
    [
        (RuntimeError("can't start new thread"), "thread"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "process"),
    ],
)
def test_a_limit_of_processes_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: Exception,
    refused: str,
) -> None:
    """Under `ulimit -u`, or a container's limit of pids, it was a traceback."""
    assert exit_code(monkeypatch, raised) == 1
    assert capsys.readouterr().err == (
        f"error: the system refuses another {refused}: end others, or raise the limit of the user "
        "(ulimit -u) or of the container (pids)\n"
    )


def test_a_width_of_no_columns_is_none() -> None:
    """Nothing was printed where a container or an editor had set COLUMNS to 0."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--help"],
        env={**os.environ, "COLUMNS": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=JOB_S,
    )
    assert "collectives" in done.stdout


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (InputError("field 'x' is 1, needs 2"), 2),
        (TopologyError("links[0] joins rank [1] to itself"), 2),
        (CommunicationError("rank 3 left"), 1),
        (HeadraceError("something else"), 1),
    ],
)
def test_a_headrace_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: HeadraceError,
    code: int,
) -> None:
    assert exit_code(monkeypatch, raised) == code
    # the message as it is: nothing in brackets is taken for markup, nothing is wrapped
    assert capsys.readouterr().err == f"error: {raised}\n"


def test_an_interrupt_exits_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, KeyboardInterrupt()) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("module", ["headrace", "headrace.cli.main"])
def test_an_interrupt_while_the_commands_are_loaded_is_quiet_too(
    tmp_path: Path, module: str
) -> None:
    """Ctrl-C in the first half second used to print the traceback of an import."""
    interrupted = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n"
    (tmp_path / "typer.py").write_text(interrupted)
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        # A test run in the background may have been told to ignore interrupts, and so its children.
        preexec_fn=_hear_interrupts,
        capture_output=True,
        text=True,
        timeout=JOB_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_our_own_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code(monkeypatch, ZeroDivisionError())
