"""The console that commands print to."""

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from headrace.job.load import MachineLoad
from headrace.units import size

tables_hidden = ContextVar("tables_hidden", default=False)
"""True while a verb prints JSON in place of its tables."""

_UNLIMITED_COLUMNS = 10_000
"""Where there is no terminal: tables do not wrap."""


def terminal(**options: Any) -> Console:
    """Return a console on standard output that leaves text such as ``:x:`` as it is.

    Parameters
    ----------
    options : of Rich's `Console`, such as `stderr` and `soft_wrap`. It is quiet where tables are
        hidden; with ``quiet=False`` it is not.
    """
    is_quiet = tables_hidden.get() and not options.get("stderr", False)
    settings: dict[str, Any] = {"emoji": False, "quiet": is_quiet, **options}
    console = Console(**settings)
    if not console.is_terminal:
        console.width = _UNLIMITED_COLUMNS
    return console


def text_of(value: object) -> str:
    """Return a user's text, such as a path, for a line with mark-up."""
    return escape(str(value))


def print_written(path: Path) -> None:
    """Print that a command wrote a file, and the file's size."""
    terminal().print(f"Wrote {text_of(path)} ({size(path.stat().st_size)}).", soft_wrap=True)


def warn_if_busy(provenance: Mapping[str, Any]) -> None:
    """Say on stderr what a measurement's load was, if other work prolonged it."""
    load = MachineLoad.from_provenance(provenance)
    if load is not None and load.warning is not None:
        terminal(stderr=True).print(load.warning, soft_wrap=True)
