"""Profiles of embeddings as tables."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from headrace.cli.tables import facts, rows
from headrace.embeddings.profile import EmbeddingProfile, Synchronisation

TRANSFER_COLUMNS = ("synchronisation", "rows", "before the next step")
LOOKAHEAD_COLUMNS = ("batches", "fetched a step", "of the distinct rows", "rows in the cache")
TABLE_COLUMNS = ("table", "rows", "accessed once", "accesses of the top 1%")
_SYNCHRONISATIONS = {
    Synchronisation.POOLED: "all-to-all of pooled rows",
    Synchronisation.DISTINCT: "all-to-all of distinct rows",
    Synchronisation.REPLICATED: "replicated caches",
    Synchronisation.LRPP: "LRPP caches",
    Synchronisation.TARGETED: "targeted",
}
_LOOKAHEADS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def access_tables(profile: EmbeddingProfile, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a profile: its batches, transfers, lookaheads, and tables' skew."""
    yield facts(
        "embedding profile",
        {
            "batches": f"{profile.batches} of {profile.batch} examples",
            "trainers": str(profile.trainers),
            "distinct rows a batch": f"{profile.rows:,.0f}",
        },
        everything=everything,
    )
    for title, columns, cells in (
        ("rows between trainers a step", TRANSFER_COLUMNS, transfer_cells(profile)),
        ("lookahead", LOOKAHEAD_COLUMNS, lookahead_cells(profile)),
        (f"tables, of {profile.counted} examples", TABLE_COLUMNS, table_cells(profile)),
    ):
        yield from rows(title, columns, cells, everything=everything)


def transfer_cells(profile: EmbeddingProfile) -> Sequence[tuple[str, str, str]]:
    """Return a row of cells for each synchronisation: name, rows in all, critical ones."""
    return [
        (_SYNCHRONISATIONS[name], f"{transfers.rows:,.0f}", f"{transfers.critical_rows:,.0f}")
        for name, transfers in profile.transfers.items()
    ]


def lookahead_cells(profile: EmbeddingProfile) -> Sequence[tuple[str, ...]]:
    """Return a row of cells for each lookahead: batches, rows fetched and cached."""
    return [
        (
            str(lookahead),
            f"{profile.fetched(lookahead):,.0f}",
            f"{profile.fetched(lookahead) / profile.rows:z.0%}",
            f"{profile.resident(lookahead):,.0f}",
        )
        for lookahead in lookaheads(profile)
    ]


def table_cells(profile: EmbeddingProfile) -> Sequence[tuple[str, str, str, str]]:
    """Return a row of cells for each table: number, rows, shares of rows and of accesses."""
    return [
        (
            str(number),
            f"{table.rows:,}",
            f"{table.rows_once / table.rows:z.0%}",
            f"{table.top_accesses / table.accesses:z.0%}",
        )
        for number, table in enumerate(profile.tables)
        if table.rows
    ]


def lookaheads(profile: EmbeddingProfile) -> list[int]:
    """Return the lookaheads to print, up to the measured one."""
    return sorted({*(n for n in _LOOKAHEADS if n < profile.lookahead), profile.lookahead})
