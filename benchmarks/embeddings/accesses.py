"""Rows that caches fetch, keep and exchange, counted of drawn accesses: nothing is timed."""

from dataclasses import dataclass
from functools import cache
from itertools import islice

from benchmarks.embeddings.cacher import id_batches
from benchmarks.embeddings.drawn import BATCH, SKEW, drawn_batches
from benchmarks.embeddings.workload import ROWS
from benchmarks.harness import Report
from headrace.embeddings import EmbeddingProfile, EmbeddingTable, Synchronisation
from headrace.embeddings.data.generate import KAGGLE_ROWS
from headrace.embeddings.data.skew import Skew
from headrace.embeddings.measure.accesses import measure_accesses
from headrace.embeddings.plan.choose import planned_slots
from headrace.embeddings.room import MOST_LOOKAHEAD
from headrace.embeddings.run.cacher.cacher import CacherOptions, dispatched
from headrace.embeddings.tables import table_groups

TRAINERS = 8
LOOKAHEAD = 200
ROW_BYTES = 4 * 48
_COUNTED = 8
"""Batches whose decisions are counted."""

PAPER_CACHES_MB = {5: 39.6, 10: 66.7, 50: 235.2, 100: 410.5, 200: 720.6, 300: 1003.3}
"""Caches of the paper by lookahead (Table 5.3); for rows of 48 floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRows:
    """Rows that the paper's caches synchronise in a step of 8 trainers, and that the next needs."""

    rows: int | None = None
    critical_rows: int | None = None


_PAPER_ROWS = {
    Synchronisation.REPLICATED: PaperRows(rows=65_000, critical_rows=65_000),
    Synchronisation.LRPP: PaperRows(rows=48_000, critical_rows=22_700),
}


def bars() -> dict[str, str]:
    """Return no bars: the bytes of designs are measured on the wire."""
    return {}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Count rows by design, lookahead, skew and data set."""
    del quick
    profile = _profile(KAGGLE_ROWS, SKEW, 300)
    _designs(report, _profile(KAGGLE_ROWS, SKEW, LOOKAHEAD))
    _lookaheads(report, profile)
    _lookaheads_of_caches(report, profile)
    for alpha in (1, 1.05, 1.5, 2, 3, 5):
        skew = Skew(kind="zipf", parameter=alpha)
        _accesses(report, "skew", str(skew), _profile(KAGGLE_ROWS, skew, 100))
    for name, rows in ROWS.items():
        _accesses(report, "data set", name, _profile(rows, SKEW, 100))
    report.note(
        "rows by lookahead: rows leave here after their last use in the window; the paper's caches "
        "have room for all rows of a window, as those whose room gives the lookahead"
    )


@cache
def _profile(rows: tuple[int, ...], skew: Skew, lookahead: int) -> EmbeddingProfile:
    batches = lookahead + _COUNTED
    return measure_accesses(
        islice(drawn_batches(rows, skew=skew), batches),
        trainers=TRAINERS,
        lookahead=lookahead,
        most_batches=batches,
    )


def _designs(report: Report, profile: EmbeddingProfile) -> None:
    """Report rows as the paper counts them: one that moves to all trainers once."""
    ring = 2 * (profile.trainers - 1)
    for design in (Synchronisation.REPLICATED, Synchronisation.LRPP, Synchronisation.TARGETED):
        transfers, paper = profile.transfers[design], _PAPER_ROWS.get(design, PaperRows())
        moves = design is Synchronisation.TARGETED
        critical = transfers.critical_rows
        report.row(
            f"rows of a step by cache design: {TRAINERS} trainers, batch {BATCH}, lookahead "
            f"{profile.lookahead}, counted",
            caches=design.value,
            rows=None if moves else transfers.rows / ring,
            paper_rows=paper.rows,
            rows_next_needs=None if moves else critical / ring,
            paper_next_needs=paper.critical_rows,
            moves=transfers.rows,
            moves_next_needs=critical,
        )


def _lookaheads(report: Report, profile: EmbeddingProfile) -> None:
    for lookahead, paper_mb in PAPER_CACHES_MB.items():
        fetched, resident = profile.fetched(lookahead), profile.resident(lookahead)
        report.row(
            f"rows by lookahead: batch {BATCH}, dimension 48, counted",
            lookahead=lookahead,
            rows=profile.rows,
            fetched_rows=fetched,
            hits=1 - fetched / profile.rows,
            resident_rows=resident,
            cache_mb=resident * ROW_BYTES / 1e6,
            paper_cache_mb=paper_mb,
        )


def _lookaheads_of_caches(report: Report, profile: EmbeddingProfile) -> None:
    """Report the lookahead that a job finds by its caches' room, and the planned one."""
    for paper_lookahead, cache_mb in PAPER_CACHES_MB.items():
        slots = int(cache_mb * 1e6) // ROW_BYTES
        planned = [
            lookahead
            for lookahead in range(1, profile.lookahead + 1)
            if planned_slots(profile, lookahead) <= slots
        ]
        report.row(
            f"lookahead by the room in caches: batch {BATCH}, dimension 48",
            cache_mb=cache_mb,
            lookahead=_lookahead_of_cache(slots),
            planned=max(planned, default=None),
            paper=paper_lookahead,
        )


def _lookahead_of_cache(slots: int) -> int | None:
    """Return the lookahead that the cacher finds; None: a batch has no room."""
    tables = tuple(
        EmbeddingTable(name=str(number), rows=rows, dim=48)
        for number, rows in enumerate(KAGGLE_ROWS)
    )
    options = CacherOptions(
        tables=tables, groups=table_groups(tables), slots=(slots,), trainers=TRAINERS
    )
    lookaheads: list[int] = []
    next(dispatched(islice(id_batches(), MOST_LOOKAHEAD), options, lookaheads.append))
    return lookaheads[0]


def _accesses(report: Report, kind: str, name: str, profile: EmbeddingProfile) -> None:
    """Report rows and moves of one kind of accesses."""
    pooled, targeted = (
        profile.transfers[synchronisation].critical_rows
        for synchronisation in (Synchronisation.POOLED, Synchronisation.TARGETED)
    )
    top = sum(table.top_accesses for table in profile.tables)
    report.row(
        f"rows by {kind}: {TRAINERS} trainers, batch {BATCH}, lookahead {profile.lookahead}, "
        "counted",
        accesses=name,
        tables=len(profile.tables),
        top_1_percent=top / sum(table.accesses for table in profile.tables),
        rows=profile.rows,
        fetched_rows=profile.fetched(profile.lookahead),
        resident_rows=profile.resident(profile.lookahead),
        moves_next_needs=targeted,
        of_pooled=targeted / pooled,
    )
