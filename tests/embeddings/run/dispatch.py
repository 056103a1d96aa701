"""Trainers' parts of batches from the lookahead's decisions, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle

import numpy as np
from hypothesis import strategies as st

from headrace import _native
from headrace.embeddings import Synchronisation
from headrace.embeddings.run.batches import GroupBatch, SlottedRows
from tests.embeddings.run.cache_design import CacheDesign, RowColumns

TableIds = list[list[int]]
"""Of one table in one batch: [trainers] lists of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Batches of ids, and the options of their lookahead.

    `batches` is [batches][tables][trainers] lists of ids; of `rows` 0: hashes. `changes` are
    lookaheads and prefetches that hold after a decision each, in turns.
    """

    rows: tuple[int, ...]
    trainers: int
    lookahead: int
    prefetch: int
    slots: int
    batches: list[list[TableIds]]
    changes: tuple[tuple[int, int], ...] = ()


@st.composite
def jobs(draw: st.DrawFn, *, tables: tuple[int, ...] = (9, 0), most_trainers: int = 4) -> Job:
    """Small jobs, in which rows are used again often, and often evicted for room."""
    trainers = draw(st.integers(1, most_trainers))
    lookahead = draw(st.integers(1, 4))
    ids = st.lists(st.integers(0, 8), max_size=4)
    batch = st.lists(
        st.lists(ids, min_size=trainers, max_size=trainers),
        min_size=len(tables),
        max_size=len(tables),
    )
    batches = draw(st.lists(batch, min_size=1, max_size=9))
    least = max(
        1, *(sum(len({*chain.from_iterable(table)}) for table in parts) for parts in batches)
    )
    return Job(
        rows=tables,
        trainers=trainers,
        lookahead=lookahead,
        prefetch=draw(st.integers(1, lookahead)),
        slots=least + draw(st.integers(0, 12)),
        batches=batches,
    )


def decisions(
    job: Job, first_batch: int = 0, commit_every: int = 0
) -> list[_native.LookaheadDecision]:
    """Return the decisions on a job's batches, of targeted exchanges."""
    lookahead = _native.Lookahead(
        job.rows,
        trainers=job.trainers,
        lookahead=job.lookahead,
        prefetch=job.prefetch,
        slots=job.slots,
        first_batch=first_batch,
        commit_every=commit_every,
    )
    decided: list[_native.LookaheadDecision] = []
    changes = cycle(job.changes or [(job.lookahead, job.prefetch)])
    for batch in job.batches:
        columns = [np.array([*chain.from_iterable(table)], np.int64) for table in batch]
        ends = np.array([np.cumsum([len(part) for part in table]) for table in batch], np.int64)
        lookahead.push(columns, ends)
        while lookahead.ready:
            decided.append(lookahead.pop())
            lookahead.change(*next(changes))
    lookahead.finish()
    while lookahead.ready:
        decided.append(lookahead.pop())
    return decided


def group_batches(
    decision: _native.LookaheadDecision,
    batch: Sequence[TableIds],
    trainers: int,
    columns: RowColumns | None = None,
) -> list[GroupBatch]:
    """Return every trainer's part of a batch; without columns, by targeted exchanges."""
    columns = columns or CacheDesign(Synchronisation.TARGETED, trainers, 0).columns(decision)
    return [_group_batch(decision, columns, batch, trainer) for trainer in range(trainers)]


def _group_batch(
    decision: _native.LookaheadDecision,
    columns: RowColumns,
    batch: Sequence[TableIds],
    trainer: int,
) -> GroupBatch:
    tables = len(batch)
    table_of = np.repeat(np.arange(tables), np.diff(decision.first))
    evicted_tables = np.repeat(np.arange(tables), np.diff(decision.evicted_first))
    next_users = columns.next_users
    uses = (columns.users >> trainer & 1).astype(bool)
    used = np.flatnonzero(uses)
    later = np.flatnonzero(~uses & (next_users >> trainer & 1).astype(bool))
    rows = np.concatenate([used, later])
    fetched = np.flatnonzero(uses & (decision.fetched == 1))
    written = np.flatnonzero(columns.evicted_owners == trainer)
    dirty_tables = np.repeat(np.arange(tables), np.diff(decision.dirty_first))
    dirty = np.flatnonzero(columns.dirty_owners == trainer)
    numbers: list[int] = []
    for table in range(tables):
        ids = decision.ids[used[table_of[used] == table]].tolist()
        numbers += [ids.index(row) for row in batch[table][trainer]]
    return GroupBatch(
        after=decision.after,
        fetched=_slotted(table_of, decision.ids, decision.slots, fetched, tables),
        evicted=_slotted(
            evicted_tables, decision.evicted_ids, decision.evicted_slots, written, tables
        ),
        dirty=_slotted(dirty_tables, decision.dirty_ids, decision.dirty_slots, dirty, tables),
        used=len(used),
        used_ends=_ends(table_of[used], tables),
        slots=decision.slots[rows],
        users=columns.users[rows],
        next_users=next_users[rows],
        owners=columns.owners[rows],
        critical=columns.critical[rows],
        rows_of_ids=np.array(numbers, np.uint32),
        id_ends=np.cumsum([len(table[trainer]) for table in batch]),
    )


def _slotted(
    tables_of: np.ndarray, ids: np.ndarray, slots: np.ndarray, rows: np.ndarray, tables: int
) -> SlottedRows:
    return SlottedRows(ends=_ends(tables_of[rows], tables), ids=ids[rows], slots=slots[rows])


def _ends(tables_of: np.ndarray, tables: int) -> np.ndarray:
    return np.cumsum(np.bincount(tables_of, minlength=tables))
