"""Entry point of ``headrace``: the commands of `cli.app`, errors in one line, silent interrupts.

The commands take a good part of a second to load, so they are loaded where an interrupt is caught.
"""

import errno
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.errors import HeadraceError

_NO_TEMPORARY_FOLDER = "No usable temporary directory"
"""Beginning of the error of Python where `tempfile` has no folder, as on a read-only system."""

_NO_THREAD = "can't start new thread"
"""The error of Python where the system refuses a thread."""

_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to a pipe, a file or a terminal."""


def main() -> None:
    """Run the command line: exit code 2 for wrong input, 1 for most other errors.

    With ``--json`` an error is one JSON object on a line of standard error: its type, message and
    exit code. A package that is not installed is wrong input; ``headrace doctor`` runs without any
    of them. An error of the system is one line where it names a file, where the folder of temporary
    files or of this process is missing, or where no process or thread can be started.
    Ctrl-C exits with 130, as shells expect of an interrupted command.
    """
    _open_closed_streams()
    _take_all_text()
    try:
        _run()
    except HeadraceError as error:
        _end(str(error), error.exit_code, type(error).__name__)
    except ImportError as error:
        from headrace.extras import missing_dependency

        if error.name == "headrace._native":
            _end(str(error), 1, "ImportError")
        if (missing := missing_dependency(error)) is None:
            raise
        _end(
            f"this command needs the package {missing.name}: {missing.command}; headrace doctor "
            "checks the others",
            2,
            "ImportError",
        )
    except OSError as error:
        if (message := _system_message(error)) is None:
            raise
        _end(message, 1, "OSError")
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        _end(_too_many_processes("thread"), 1, "OSError")
    except KeyboardInterrupt:
        sys.exit(130)


def _open_closed_streams() -> None:
    """Open the standard streams that the caller closed, as by ``>&-``, on nothing.

    Python has None in their place, and the next file that is opened would have their number: what
    child processes and native code print would be written to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _take_all_text() -> None:
    """Let the streams escape what their encoding lacks: file names may be of any bytes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _system_message(error: OSError) -> str | None:
    """Return the message of an error of the system, with its remedy; None: it is a bug."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if str(error.strerror).startswith(_NO_TEMPORARY_FOLDER):
        return f"{error.strerror}: export TMPDIR=FOLDER, with a folder that can be written"
    if error.errno == errno.ENOENT and _folder_is_gone():
        return "the folder that this was started in is gone: change to another"
    # of a full pipe, which does not block, Python says another text
    if error.errno == errno.EAGAIN and error.strerror == os.strerror(errno.EAGAIN):
        return _too_many_processes("process")
    if not _output_fails(error):
        return None
    sys.stdout = None  # what it holds back cannot be written at exit, either
    return f"standard output cannot be written: {error.strerror}"


def _too_many_processes(refused: str) -> str:
    return (
        f"the system refuses another {refused}: end others, or raise the limit of the user "
        "(ulimit -u) or of the container (pids)"
    )


def _folder_is_gone() -> bool:
    """Return whether the folder of this process was removed, as on another terminal."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _output_fails(error: OSError) -> bool:
    """Return whether standard output refuses what it holds back; unbuffered, it may have."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return error.errno in _OUTPUT_ERRORS and bool(getattr(sys.stdout, "write_through", False))


def _run() -> None:
    try:
        from headrace.settings import drop_width_of_zero

        drop_width_of_zero()
        from headrace.cli.app import app

        if prints_json():
            _run_for_scripts(app)
        else:
            app()
    except ImportError:
        if sys.argv[1:2] != ["doctor"]:
            raise
        from headrace.doctor.command import run_plainly

        sys.exit(run_plainly(sys.argv[2:]))


def prints_json() -> bool:
    """Return whether the arguments of this process ask a verb for JSON."""
    options = sys.argv[1:]
    return "--json" in (options[: options.index("--")] if "--" in options else options)


def _run_for_scripts(app: Callable[..., Any]) -> NoReturn:
    """Run the commands; an error in the arguments is JSON, too."""
    import typer

    usage_errors: Any = typer.BadParameter.__mro__[2]  # Click's, of which Typer may have a copy
    assert usage_errors.__name__ == "ClickException"
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        code = 1
    except usage_errors as error:
        message = " ".join(error.format_message().split())
        _end(message, error.exit_code, "UsageError")
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int, kind: str) -> NoReturn:
    if prints_json():
        error = {"type": kind, "message": message, "exit_code": code}
        sys.stderr.write(f"{json.dumps({'error': error})}\n")
        sys.exit(code)
    try:
        from headrace.cli.console import terminal, text_of
    except ImportError:
        sys.stderr.write(f"error: {message}\n")
    else:
        terminal(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {text_of(message)}")
    sys.exit(code)


if __name__ == "__main__":
    main()
