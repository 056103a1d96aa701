"""The cacher: of batches of ids, each trainer's part of every batch (BagPipe, 5.2.2)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.data.examples import Examples, check_ids, id_ends, share_ends
from headrace.embeddings.data.files import by_table, shared_lengths
from headrace.embeddings.data.origins import OutsideId, first_outside
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.profile import Synchronisation
from headrace.embeddings.room import MOST_LOOKAHEAD, needed_slots, resident_rows
from headrace.embeddings.run.batches import LENGTHS, GroupBatch, SlottedRows, TrainerBatch
from headrace.embeddings.tables import EmbeddingTable, TableGroup

CACHES: Mapping[Synchronisation, _native.CacheSynchronisation] = {
    Synchronisation.TARGETED: _native.CacheSynchronisation.TARGETED,
    Synchronisation.LRPP: _native.CacheSynchronisation.LRPP,
    Synchronisation.REPLICATED: _native.CacheSynchronisation.REPLICATED,
    Synchronisation.DISTINCT: _native.CacheSynchronisation.DISTINCT,
}
"""Synchronisations that have caches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IdBatch:
    """A batch of examples: the rows that they use, and columns that are no ids.

    Attributes
    ----------
    examples : their number.
    fields : [examples, ...]: columns such as labels.
    ids : of every table of the job, one example's ids after the other's.
    lengths : of every table, [examples]: the number of each example's ids; None: one each.
    """

    examples: int
    fields: Mapping[str, NDArray[Any]]
    ids: tuple[NDArray[np.int64], ...]
    lengths: tuple[NDArray[np.int64] | None, ...]

    def __post_init__(self) -> None:
        for name, column in self.fields.items():
            if len(column) != self.examples:
                raise EmbeddingError(
                    f"field {name} has {len(column)} rows, needs one for each of "
                    f"{self.examples} examples"
                )
        check_ids(self.examples, self.ids, self.lengths)


def id_batch(examples: Examples) -> IdBatch:
    """Return examples as a batch whose fields are `dense` and, of labelled ones, `labels`."""
    fields: dict[str, NDArray[Any]] = {"dense": examples.dense}
    if examples.labels is not None:
        fields["labels"] = examples.labels
    return IdBatch(
        examples=len(examples), fields=fields, ids=examples.ids, lengths=examples.lengths
    )


def table_batch(examples: Examples, columns: Sequence[Sequence[int]]) -> IdBatch:
    """Return examples as a batch of tables, each looked up with some columns.

    Fields `LENGTHS` and a column have the lengths of bags that feed a table with other columns.
    """
    batch = id_batch(by_table(examples, columns))
    lengths = shared_lengths(examples, columns)
    fields = {f"{LENGTHS}{column}": own for column, own in lengths.items()}
    return replace(batch, fields={**batch.fields, **fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class CacherOptions:
    """Trainers and caches that batches are decided for.

    Attributes
    ----------
    tables : of the job.
    groups : of the tables; every table is in one.
    slots : of every group, rows that a trainer's cache has room for.
    trainers : that share each batch; of equal shares the first ones have one example more where
        their number does not divide the batch.
    lookahead : batches that a decision looks at, its own included; None: as many as have arrived
        when the cache of one group would be full (5.3), at most `MOST_LOOKAHEAD`.
    prefetch : batches between a fetch and its use, at most `lookahead`.
    synchronisation : between the caches.
    commit_every : batches from one commit to the next, by their numbers; 0: there is none.
        After an epoch's last batch no row stays.
    shares : of the trainers in a batch's examples, at first; they add up to 1. None: equal ones.

    Raises
    ------
    EmbeddingError : a table is in no group or in several, a group has no slots, or the
        synchronisation has no caches.
    """

    tables: tuple[EmbeddingTable, ...]
    groups: tuple[TableGroup, ...]
    slots: tuple[int, ...]
    trainers: int
    lookahead: int | None = None
    prefetch: int = 1
    synchronisation: Synchronisation = Synchronisation.TARGETED
    commit_every: int = 0
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.synchronisation not in CACHES:
            names = ", ".join(synchronisation.value for synchronisation in CACHES)
            raise EmbeddingError(
                f"synchronisation is {self.synchronisation.value}, which has no caches: needs one "
                f"of {names}"
            )
        numbers = sorted(table for group in self.groups for table in group.tables)
        if numbers != list(range(len(self.tables))):
            raise EmbeddingError(
                f"groups have tables {numbers}, need each of the {len(self.tables)} once"
            )
        if len(self.slots) != len(self.groups):
            raise EmbeddingError(
                f"slots are of {len(self.slots)} groups, need one number for each of "
                f"{len(self.groups)}"
            )


class RefusedBatchError(EmbeddingError):
    """A batch that cannot be decided.

    Attributes
    ----------
    batch : its number.
    outside : an id outside its table, if there is one.
    group, rows : else the group of tables whose cache has no room for so many distinct rows.
    """

    def __init__(
        self, text: str, *, batch: int, outside: OutsideId | None, group: int, rows: int
    ) -> None:
        super().__init__(text)
        self.batch = batch
        self.outside = outside
        self.group = group
        self.rows = rows


FollowJob = Callable[["BatchDecisions"], None]
"""Called before each batch that is taken; it may change decisions, and let others be made first."""


def unchanged(decisions: "BatchDecisions") -> None:
    """Leave decisions as they are."""
    del decisions


def dispatched(
    batches: Iterable[IdBatch],
    options: CacherOptions,
    on_lookahead: Callable[[int], None] = lambda _lookahead: None,
    *,
    first_batch: int = 0,
    follow: FollowJob = unchanged,
) -> Iterator[tuple[TrainerBatch, ...]]:
    """Yield, of every batch of an epoch in order, the part of each trainer.

    All rows are evicted by the last batch.

    Parameters
    ----------
    on_lookahead : is called with the lookahead before the first decision.
    first_batch : number of the first batch: batches are numbered on over epochs, and those of a
        later one fetch rows when all evictions of the epoch before are written back.

    Raises
    ------
    EmbeddingError : a batch has other tables than the job, an id outside its table, or more rows
        of a group than its cache has slots.
    """
    decisions = BatchDecisions(options, first_batch)
    lookahead = options.lookahead
    if lookahead is not None:
        on_lookahead(lookahead)
    for batch in batches:
        decisions.push(batch)
        if lookahead is None:
            lookahead = _found_lookahead(decisions, options)
            if lookahead is None:
                continue
            decisions.change(lookahead, options.prefetch)
            on_lookahead(lookahead)
        while decisions.ready:
            while decisions.ready:
                yield decisions.pop()
            follow(decisions)
    if lookahead is None:
        on_lookahead(max(decisions.arrived, options.prefetch))
    decisions.finish()
    while decisions.ready:
        yield decisions.pop()


class _PushedBatch(NamedTuple):
    """A batch whose ids are in the windows.

    Attributes
    ----------
    ends : [trainers], of their shares of its examples.
    """

    examples: int
    ends: NDArray[np.int64]
    fields: Mapping[str, NDArray[Any]]
    lengths: tuple[NDArray[np.int64] | None, ...]
    padding: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """Room for the rows of a window, of the group whose cache has least.

    Attributes
    ----------
    slot_share : slots that it needs over those that it has, see `needed_slots`.
    short : whether rows left that will be used in the window, for want of room.
    """

    slot_share: float
    short: bool


class BatchDecisions:
    """Decisions on the batches of an epoch, of all groups of tables.

    Attributes
    ----------
    first_batch : number of the first one.
    lookahead, prefetch : in force.
    rows : of the window of the batch that was decided last; None: there is none.
    examples : of every trainer in that batch.
    shares : of the trainers in the examples of batches that arrive from now on, they add up to 1;
        None: equal ones.
    """

    def __init__(self, options: CacherOptions, first_batch: int = 0) -> None:
        self._options = options
        self.lookahead = options.lookahead or max(MOST_LOOKAHEAD, options.prefetch)
        self.prefetch = options.prefetch
        self.rows: WindowRows | None = None
        self.examples: tuple[int, ...] = ()
        self._windows = _windows(options, self.lookahead, first_batch)
        self._pushed: deque[_PushedBatch] = deque()
        self._next = self.first_batch = first_batch
        self.shares = options.shares

    def push(self, batch: IdBatch) -> None:
        """Take the next batch.

        Raises
        ------
        EmbeddingError : it has other tables than the job, an id outside its table, or more rows of
            a group than its cache has slots.
        """
        ends = share_ends(batch.examples, self._options.trainers, self.shares)
        _push(self._windows, batch, ends, self._next, self._options)
        padding = _padding(batch, ends, self._options)
        self._pushed.append(
            _PushedBatch(batch.examples, ends, batch.fields, batch.lengths, padding)
        )
        self._next += 1

    @property
    def next_batch(self) -> int:
        """Number of the batch that is pushed next."""
        return self._next

    @property
    def arrived(self) -> int:
        """Batches that are not decided."""
        return len(self._pushed)

    @property
    def ready(self) -> bool:
        """True if the next batch can be decided."""
        return self._windows[0].ready

    @property
    def full(self) -> bool:
        """True if the rows of the batches that have arrived do not fit a cache."""
        windows = zip(self._options.slots, self._windows, strict=True)
        return any(window.distinct > slots for slots, window in windows)

    def pop(self) -> tuple[TrainerBatch, ...]:
        """Decide the next batch; return each trainer's part."""
        slot_share = self._slot_share()
        decisions = [window.pop() for window in self._windows]
        self.rows = WindowRows(
            slot_share=slot_share, short=any(decision.evicted_for_room for decision in decisions)
        )
        parts = _parts(decisions, self._pushed.popleft(), self.prefetch)
        self.examples = tuple(part.examples for part in parts)
        return parts

    def finish(self) -> None:
        """Let all batches that have arrived be decided: no other follows."""
        for window in self._windows:
            window.finish()

    def change(self, lookahead: int, prefetch: int) -> None:
        """Change the lookahead and the prefetch of decisions to come."""
        self.lookahead, self.prefetch = lookahead, prefetch
        for window in self._windows:
            window.change(lookahead, prefetch)

    def _slot_share(self) -> float:
        """Return the slots that the window needs over those that there are, in the fullest cache.

        By its newest batch, as those before it arrived when the window may have been shorter.
        """

        def slots_of(window: _native.Lookahead) -> float:
            fetched = window.newest_fetched
            steady = resident_rows(window.distinct, fetched, window.arrived)
            return needed_slots(max(window.resident, steady), fetched, self.prefetch)

        windows = zip(self._options.slots, self._windows, strict=True)
        return max(slots_of(window) / slots for slots, window in windows)


def _found_lookahead(decisions: BatchDecisions, options: CacherOptions) -> int | None:
    """Return the batches that a cache has room for once it is full; None: it has for others."""
    full = decisions.full
    if not full and decisions.arrived < MOST_LOOKAHEAD:
        return None
    return max(decisions.arrived - full, options.prefetch)


def _windows(options: CacherOptions, lookahead: int, first_batch: int) -> list[_native.Lookahead]:
    try:
        return [
            _native.Lookahead(
                [options.tables[table].rows for table in group.tables],
                trainers=options.trainers,
                lookahead=lookahead,
                prefetch=options.prefetch,
                slots=slots,
                synchronisation=CACHES[options.synchronisation],
                first_batch=first_batch,
                commit_every=options.commit_every,
            )
            for group, slots in zip(options.groups, options.slots, strict=True)
        ]
    except ValueError as error:
        raise EmbeddingError(str(error)) from error


def _check_tables(batch: IdBatch, number: int, options: CacherOptions) -> None:
    if len(batch.ids) != len(options.tables):
        raise EmbeddingError(
            f"batch {number} has ids of {len(batch.ids)} tables, needs {len(options.tables)}"
        )


def _push(
    windows: Sequence[_native.Lookahead],
    batch: IdBatch,
    ends: NDArray[np.int64],
    number: int,
    options: CacherOptions,
) -> None:
    _check_tables(batch, number, options)
    for place, (group, window) in enumerate(zip(options.groups, windows, strict=True)):
        ends_of_ids = np.array(
            [id_ends(batch.lengths[table], ends) for table in group.tables], np.int64
        )
        ids = [np.ascontiguousarray(batch.ids[table], np.int64) for table in group.tables]
        try:
            window.push(ids, ends_of_ids)
        except ValueError as error:
            raise _refusal(batch, number, place, options, str(error)) from error


def _refusal(
    batch: IdBatch, number: int, group: int, options: CacherOptions, reason: str
) -> EmbeddingError:
    """Return the error of a batch that a window refused for a group's ids."""
    tables = options.groups[group].tables
    outside = first_outside(
        [batch.ids[table] for table in tables],
        [batch.lengths[table] for table in tables],
        [options.tables[table] for table in tables],
    )
    if outside is not None:
        text = str(outside.error(f"batch {number}, example {outside.example}"))
        return RefusedBatchError(text, batch=number, outside=outside, group=group, rows=0)
    rows = sum(len(np.unique(batch.ids[table])) for table in tables)
    if rows <= options.slots[group]:
        return EmbeddingError(f"batch {number}: {reason}")
    names = [options.tables[table].name for table in tables]
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    text = (
        f"batch {number} has {rows} distinct rows of {names[0]}{others}, more than the "
        f"{options.slots[group]} that a trainer's cache has room for"
    )
    return RefusedBatchError(text, batch=number, outside=None, group=group, rows=rows)


def _padding(
    batch: IdBatch, shares: NDArray[np.int64], options: CacherOptions
) -> list[tuple[int, ...]]:
    """Return, for every trainer, the first of its ids of each table that is the padding, or -1."""
    if all(table.padding is None for table in options.tables):
        return [()] * options.trainers
    firsts = np.full((options.trainers, len(options.tables)), -1)
    for number, table in enumerate(options.tables):
        if table.padding is None:
            continue
        ends = id_ends(batch.lengths[number], shares)
        for trainer, ids in enumerate(np.split(batch.ids[number], ends[:-1])):
            positions = np.flatnonzero(ids == table.padding)
            if len(positions):
                firsts[trainer, number] = positions[0]
    return [tuple(row) for row in firsts.tolist()]


def _parts(
    decisions: Sequence[_native.LookaheadDecision], batch: _PushedBatch, prefetch: int
) -> tuple[TrainerBatch, ...]:
    """Return each trainer's part of a decided batch."""
    dispatched_rows = [decision.dispatch() for decision in decisions]
    ends = batch.ends.tolist()
    parts: list[TrainerBatch] = []
    for trainer, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        parts.append(
            TrainerBatch(
                batch=decisions[0].batch,
                prefetch=prefetch,
                commit=decisions[0].commit,
                examples=stop - start,
                examples_in_all=batch.examples,
                fields={name: column[start:stop] for name, column in batch.fields.items()},
                lengths=tuple(
                    None if lengths is None else lengths[start:stop] for lengths in batch.lengths
                ),
                groups=tuple(
                    _group_batch(decision.after, rows[trainer])
                    for decision, rows in zip(decisions, dispatched_rows, strict=True)
                ),
                padding=batch.padding[trainer],
            )
        )
    return tuple(parts)


def _group_batch(after: int, rows: _native.DispatchedRows) -> GroupBatch:
    return GroupBatch(
        after=after,
        fetched=SlottedRows(ends=rows.fetched_ends, ids=rows.fetched_ids, slots=rows.fetched_slots),
        evicted=SlottedRows(ends=rows.evicted_ends, ids=rows.evicted_ids, slots=rows.evicted_slots),
        dirty=SlottedRows(ends=rows.dirty_ends, ids=rows.dirty_ids, slots=rows.dirty_slots),
        used=int(rows.used_ends[-1]),
        used_ends=rows.used_ends,
        slots=rows.slots,
        users=rows.users,
        next_users=rows.next_users,
        owners=rows.owners,
        critical=rows.critical.view(np.bool_),
        rows_of_ids=rows.rows_of_ids,
        id_ends=rows.id_ends,
    )
