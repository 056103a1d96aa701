"""Progress bar for long work."""

import contextlib
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

LINE_S = 5.0
"""Between two lines of progress where there is no terminal; so long, too, before the first."""

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


@contextlib.contextmanager
def activity(
    console: Console, *, clock: Callable[[], float] = time.monotonic
) -> Generator[Callable[[str], None]]:
    """Show what is done while the block runs: by a spinner, or off a terminal now and then a line.

    Parameters
    ----------
    clock : seconds.

    Yields
    ------
    Callable
        Called with the present activity.
    """
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    begin = last = clock()

    def line(text: str) -> None:
        nonlocal last
        now = clock()
        if now - last >= LINE_S:
            last = now
            console.print(f"{text} ({now - begin:.0f} s)", markup=False, soft_wrap=True)

    yield line
