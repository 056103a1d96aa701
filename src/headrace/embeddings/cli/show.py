"""Profiles and plans of embeddings as tables."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from headrace.cli.tables import facts, rows
from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.embeddings.profile import EmbeddingProfile, Synchronisation
from headrace.units import size

TRANSFER_COLUMNS = ("synchronisation", "rows", "before the next step")
LOOKAHEAD_COLUMNS = ("batches", "fetched a step", "of the distinct rows", "rows in the cache")
STEP_COLUMNS = ("predicted, of a step", "rows", "bytes")
MOVED_COLUMNS = ("predicted, of a step", "from", "to", "bytes")
TIME_COLUMNS = ("predicted, of a step", "busy", "of the step")
_MOVED = {
    "read": ("examples", "readers", "cacher"),
    "dispatched": ("examples, and where their rows are", "cacher", "trainers"),
    "requested": ("ids of rows", "trainers", "servers"),
    "fetched": ("rows", "servers", "trainers"),
    "written": ("evicted rows", "trainers", "servers"),
    "critical": ("gradients and rows, before the next step", "trainers", "trainers"),
    "delayed": ("gradients and rows, beside the next step", "trainers", "trainers"),
    "averaged": ("gradients of the dense part", "trainers", "trainers"),
}
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


def lookahead_plan_tables(plan: EmbeddingPlan, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan: its processes and caches, and what a step is to move."""
    yield facts("embedding plan", plan_facts(plan), everything=everything)
    for title, columns, cells in (
        ("rows of a step", STEP_COLUMNS, step_cells(plan)),
        ("bytes of a step", MOVED_COLUMNS, moved_cells(plan)),
        ("time of a step", TIME_COLUMNS, time_cells(plan)),
    ):
        if cells:
            yield from rows(title, columns, cells, everything=everything)


def plan_facts(plan: EmbeddingPlan) -> dict[str, str]:
    """Return the numbers of processes, lookahead and cache of a plan, by name."""
    lines = {
        "batch": f"{plan.batch} examples",
        "trainers, servers, readers": f"{plan.trainers}, {plan.servers}, {plan.readers}",
        "lookahead": f"{plan.lookahead} batches, fetched {plan.prefetch} ahead",
        "cache of a trainer": size(plan.cache_bytes),
        "synchronisation": plan.synchronisation.value,
        "commits": f"every {plan.commit_every} batches",
    }
    if plan.commits is not None:
        lines["commits"] += (
            f": {plan.commits.rows:,.0f} rows, {plan.commits.share:z.1%} of the time; losses undo "
            f"{plan.commits.redone_share:z.1%}"
        )
    if plan.time is not None:
        lines["predicted step"] = f"{1e3 * plan.time.step_s:.4g} ms, bound by {plan.time.bound}"
    return lines


def step_cells(plan: EmbeddingPlan) -> Sequence[tuple[str, str, str]]:
    """Return a row of cells for each kind of rows that a step moves."""
    return [
        (kind, f"{number:,.0f}", size(round(number * plan.row_bytes)))
        for kind, number in (
            ("distinct rows", plan.rows),
            ("in the cache", plan.resident_rows),
            ("from the servers", plan.fetched_rows),
            ("between trainers", plan.exchanged_rows),
            ("before the next step", plan.critical_rows),
        )
    ]


def moved_cells(plan: EmbeddingPlan) -> Sequence[tuple[str, str, str, str]]:
    """Return a row of cells for each kind of messages of a step."""
    return [
        (*texts, size(round(number)))
        for name, texts in _MOVED.items()
        if (number := getattr(plan.moved, name)) > 0
    ]


def time_cells(plan: EmbeddingPlan) -> Sequence[tuple[str, str, str]]:
    """Return a row of cells for each resource of a step; none where no times are predicted."""
    if plan.time is None:
        return []
    return [
        (name, f"{1e3 * seconds:.3g} ms", f"{seconds / plan.time.step_s:z.0%}")
        for name, seconds in plan.time.resources_s.items()
    ]
