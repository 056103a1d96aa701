"""A bar for long work."""

import contextlib
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str, float], None]
"""Called with what is being done and the fraction that is done."""


@contextlib.contextmanager
def progress(console: Console, *, visible: bool) -> Generator[Report]:
    """Show a bar while the block runs; it goes when the block ends."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not visible) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
