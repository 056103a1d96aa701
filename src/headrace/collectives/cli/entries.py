"""The entries of a plan book as tables, in 80 columns."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.answers import result_of
from headrace.collectives.cli.entry_results import EntryResult
from headrace.collectives.demand import ROOTED
from headrace.collectives.plan.book import Entry
from headrace.units import duration, size

_COLUMNS = (
    ("from", 9),
    ("up to", 9),
    ("made by", 18),
    ("chunks", 6),
    ("scored at", 9),
    ("predicted", 9),
    ("bound", 8),
    ("gap", 5),
)
"""Title and width of each column: with the gaps between them 80."""


_GENERATOR_CHARS = 72
"""Most characters of a generator's name: four lines of its column."""


def entry_tables(entries: Iterable[Entry]) -> Iterator[RenderableType]:
    """Yield one heading, then a table for each collective and root.

    Prediction, bound and gap are for the size that the plan was scored at.
    """
    yield _columns(show_header=True)
    for (collective, root), rows in groupby(entries, key=lambda e: (e.collective, e.root)):
        title = f"{collective.value}, root {root}" if collective in ROOTED else collective.value
        yield Text(title, style="bold")
        table = _columns(show_header=False)
        for entry in rows:
            plan = entry.plan
            table.add_row(
                size(entry.from_bytes, plan.total_bytes),
                "" if entry.to_bytes is None else size(entry.to_bytes, plan.total_bytes),
                plan.generator[:_GENERATOR_CHARS],
                str(plan.program.demand.chunks),
                size(plan.total_bytes),
                duration(plan.predicted_us),
                duration(plan.bound.total_us),
                f"{plan.gap:z.0%}",
            )
        yield table


def entry_result(entry: Entry) -> EntryResult:
    """Return the figures of an entry."""
    plan = entry.plan
    return result_of(
        EntryResult,
        entry,
        collective=entry.collective.value,
        generator=plan.generator,
        chunks=plan.program.demand.chunks,
        scored_bytes=plan.total_bytes,
        predicted_us=plan.predicted_us,
        bound_us=plan.bound.total_us,
        gap=plan.gap,
    )


def _columns(*, show_header: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=show_header)
    for name, width in _COLUMNS:
        justify = "left" if name == "made by" else "right"
        table.add_column(name, justify=justify, width=width, overflow="fold")
    return table
