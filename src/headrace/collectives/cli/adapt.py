"""``headrace collectives adapt``: bring a plan book up to date with a new measurement."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option
from headrace.cli.progress import progress
from headrace.collectives.cli.network import read_network
from headrace.units import duration, size

if TYPE_CHECKING:
    from headrace.collectives.adapt.act.rebook import RangeChoice
    from headrace.collectives.plan.generators.templates.two_level.masters import Masters

_LINKS = 8
"""Most lost links that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceResult:
    """A range of sizes: the plan before and now; predictions on the network as it is now.

    No time before where there was no plan, or where the network lacks a link that it uses.
    """

    collective: str
    root: int
    from_bytes: int
    to_bytes: int | None
    before: str
    before_us: float | None
    after: str
    after_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedBookResult:
    """The adapted plan book."""

    file: WrittenFile
    plans: int
    choices: list[ChoiceResult]


def adapt_command(
    source: Annotated[Path, typer.Argument(help="The plan book to adapt.", metavar="BOOK")],
    profile: Annotated[Path, typer.Option(help="Measured profile: of the network as it is now.")],
    output: Annotated[Path, output_option("File to write: the new plan book.")],
) -> AdaptedBookResult:
    """Adapt a plan book to a network that was measured again, and print the changes.

    Keeps a plan where it still is the best, moves the masters of its allreduces, or replans. A job
    adapts by itself while it runs; this is for books that are kept.

    Example: headrace collectives adapt network.book --profile network.profile -o new.book
    """
    from headrace.collectives.adapt.offline import adapt_book
    from headrace.collectives.plan.book import PlanBook
    from headrace.collectives.plan.request import Method
    from headrace.collectives.run.synthesis import NativeSearch

    book = PlanBook.load(source)
    topology, groups = read_network(profile)
    with progress(terminal(stderr=True), visible=True) as report:
        method = Method(engine=NativeSearch(), effort="quick")
        adapted = adapt_book(book, topology, groups, report, method)
    adapted.book.save(output)
    out = terminal()
    if adapted.lost_links:
        lost = ", ".join(f"{src} -> {dst}" for src, dst in adapted.lost_links[:_LINKS])
        more = len(adapted.lost_links) - _LINKS
        out.print(
            f"The network no longer has links {lost}{f' and {more} more' if more > 0 else ''}: "
            "plans that use them are replaced.",
            soft_wrap=True,
            highlight=False,
        )
    if adapted.masters is not None:
        out.print(_masters(*adapted.masters, hosts=[topology.hosts[h] for h in topology.rank_host]))
    out.print(_choices(choice for choice in adapted.choices if choice.entry.root == 0))
    out.print(
        f"Wrote [bold]{text_of(output)}[/]: {len(adapted.book.entries)} plans.", soft_wrap=True
    )
    choices = [
        result_of(
            ChoiceResult,
            choice.entry,
            collective=choice.entry.collective.value,
            before=choice.before,
            before_us=None if np.isinf(choice.before_us) else choice.before_us,
            after=choice.entry.plan.generator,
            after_us=choice.entry.plan.predicted_us,
        )
        for choice in adapted.choices
    ]
    return AdaptedBookResult(
        file=WrittenFile.at(output), plans=len(adapted.book.entries), choices=choices
    )


def _choices(choices: "Iterable[RangeChoice]") -> Table:
    """Return by range the plans before and now, with predictions for the network now."""
    table = Table(box=None, pad_edge=False, title="predicted on the network as it is now")
    for name in ("", "up to", "was", "takes", "becomes", "takes", "less"):
        table.add_column(name, justify="left" if name in ("", "was", "becomes") else "right")
    for collective, rows in groupby(choices, key=lambda choice: choice.entry.collective):
        for index, row in enumerate(rows):
            plan, to_bytes = row.entry.plan, row.entry.to_bytes
            runs = not np.isinf(row.before_us)
            # one rank alone takes no time, whatever the plan
            less = 1 - plan.predicted_us / row.before_us if row.before_us else 0.0
            table.add_row(
                "" if index else collective.value,
                "" if to_bytes is None else size(to_bytes, plan.total_bytes),
                row.before,
                duration(row.before_us) if runs else "",
                plan.generator,
                duration(plan.predicted_us),
                f"{less:z.0%}" if runs else "",
            )
    return table


def _masters(before: "Masters", after: "Masters", hosts: list[str]) -> Table:
    """Return by rank the numbers of chunks that it masters, locally and globally."""
    table = Table(box=None, pad_edge=False, title=f"masters of {after.chunks} chunks")
    for name in ("rank", "host", "local, before", "after", "global, before", "after"):
        table.add_column(name, justify="left" if name == "host" else "right")
    columns = (before.local_counts, after.local_counts, before.global_counts, after.global_counts)
    for rank, host in enumerate(hosts):
        table.add_row(str(rank), host, *(str(column[rank]) for column in columns))
    return table
