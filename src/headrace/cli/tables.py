"""Tables of artifacts' contents, cut where they are long."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from headrace.topology import Topology
from headrace.topology.profile import Profile
from headrace.units import duration, rate

_LINKS = 60
"""Most links, and rows of any other table, that are printed without --all."""

_NAME = 24
"""Width, in characters, that a column of names keeps where a table is narrowed."""

_UNLIMITED_COLUMNS = 10_000

_CHARACTERS = 2000
"""Most characters of a text that are printed without --all."""


def topology_tables(topology: Topology, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a topology: its ranks, links and shared capacities."""
    named = {"name": topology.name, "ranks": _homes(topology, everything)}
    yield facts("topology", named, everything=everything)
    yield from rows(
        "links",
        ("from", "to", "alpha", "rate"),
        [(k.src, k.dst, duration(k.alpha_us), rate(k.beta_us_per_mb)) for k in topology.links],
        everything=everything,
    )
    yield from rows(
        "shared capacities",
        ("name", "rate", "links"),
        [
            (
                s.name,
                "at least " * s.at_least + rate(s.beta_us_per_mb),
                _pairs(topology, s.links, everything),
            )
            for s in topology.shared
        ],
        everything=everything,
    )


def profile_tables(profile: Profile, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a profile: how it was measured, and its topology."""
    yield facts("profile", dict(profile.summary()), everything=everything)
    yield from topology_tables(profile.topology, everything)


def _homes(topology: Topology, everything: bool) -> str:
    """Return the ranks by host, runs of them as ranges."""
    texts: list[str] = []
    for host, run in groupby(range(topology.ranks), key=lambda rank: topology.rank_host[rank]):
        ranks = list(run)
        span = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        texts.append(f"{span} on {topology.hosts[host]}")
    shown = texts if everything else texts[:_LINKS]
    more = f", and {len(texts) - len(shown)} more" if len(shown) < len(texts) else ""
    return ", ".join(shown) + more


def _pairs(topology: Topology, links: tuple[int, ...], everything: bool) -> str:
    shown = links if everything else links[:_LINKS]
    pairs = ", ".join(f"{topology.links[i].src}>{topology.links[i].dst}" for i in shown)
    return pairs if len(shown) == len(links) else f"{pairs} and {len(links) - len(shown)} more"


def facts(title: str, named: dict[str, str], *, everything: bool = False) -> Table:
    """Return a table of names and their texts."""
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in islice(named.items(), None if everything else _LINKS):
        table.add_row(_cut(name, everything), _cut(value, everything))
    if len(named) > _LINKS and not everything:
        table.add_row("...", f"{len(named) - _LINKS} more: --all shows them")
    return table


def rows(
    title: str,
    columns: Iterable[str],
    cells: Sequence[Iterable[object]],
    *,
    everything: bool,
) -> Iterator[RenderableType]:
    """Return a table, and a line on the rows that it leaves out."""
    table = _NamedRows(title=title, title_justify="left", box=None, padding=(0, 1))
    shown = cells if everything else cells[:_LINKS]
    for column in columns:
        is_text = column in ("collective", "generator", "note", "name", "links")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in shown:
        table.add_row(*(_cut(str(cell), everything) for cell in row))
    yield table
    if len(cells) > _LINKS and not everything:
        yield f" ... {len(cells) - _LINKS} more {title}: --all shows them"


class _NamedRows(Table):
    """A table that is narrowed, where it has to be, in other columns than those of names.

    A least width of these columns would do so as well, but Rich then crops the last columns.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=_UNLIMITED_COLUMNS)
        named = [column for column in self.columns if column.header == "name"]
        for column in named:
            column.width = None
        if Measurement.get(console, unlimited, self).maximum > options.max_width:
            for column in named:
                cells = [column.header, *column.cells]
                longest = max(Measurement.get(console, unlimited, cell).maximum for cell in cells)
                column.width = min(longest, _NAME)
        yield from super().__rich_console__(console, options)


def _cut(text: str, everything: bool) -> str:
    return text if everything or len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
