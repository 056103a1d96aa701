"""Progress bar for long work."""

import contextlib
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

Report = Callable[[str, float], None]
"""Called with the current activity and the fraction done."""


@contextlib.contextmanager
def progress(console: Console, *, visible: bool) -> Generator[Report]:
    """Show a bar while the block runs; it goes when the block ends."""
    columns = (
        # wraps: the end of a long line is where a solver's bound and gap are
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1)),
        BarColumn(bar_width=16),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    shown = visible and console.is_terminal  # else all that is left is an empty line
    with Progress(*columns, console=console, transient=True, expand=True, disable=not shown) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
