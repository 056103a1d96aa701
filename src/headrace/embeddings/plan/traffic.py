"""Bytes of a step between the processes of a job, by what they are, from the formats of messages.

Heads of messages and what the network adds to them are not counted: of a batch of thousands of
examples they are a few in a thousand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of

from headrace.artifact_value import stored_value
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.profile import EmbeddingProfile, StepRows

_ID_BYTES = 8
"""Of an id in a call of a server."""

_SLOT_BYTES = 4
_OWNER_BYTES = 1
_END_BYTES = 4
_LISTS = 5
"""Lists of a part that have an end for each table: used rows, ids, fetched, evicted, dirty rows."""


@stored_value("headrace.embeddings", EmbeddingError)
class StepBytes:
    """Bytes of a step, of all processes together.

    Attributes
    ----------
    read : readers to the cacher: examples.
    dispatched : the cacher to the trainers: examples, and where their rows are.
    requested : trainers to the servers: ids of rows.
    fetched : servers to the trainers: rows.
    written : trainers to the servers: evicted rows, and those of commits.
    critical, delayed : between trainers: gradients and rows, before the next step or beside it.
    averaged : between trainers: gradients of the dense part, by a ring.
    """

    read: float
    dispatched: float
    requested: float
    fetched: float
    written: float
    critical: float
    delayed: float
    averaged: float

    @property
    def of_trainers(self) -> float:
        """Bytes that trainers send or receive: those between two of them once."""
        return sum(getattr(self, field.name) for field in fields_of(self)) - self.read


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes of a row.

    Attributes
    ----------
    gradient_bytes : of the numbers that the model reads.
    row_bytes : of these with the optimizer's state.
    """

    gradient_bytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """Bytes of a step that one process sends and receives."""

    sent: float
    received: float

    @property
    def busier(self) -> float:
        """Bytes of the direction with more of them."""
        return max(self.sent, self.received)


def step_bytes(
    profile: EmbeddingProfile,
    rows: StepRows,
    row: RowBytes,
    *,
    dense_bytes: int = 0,
    dirty_rows: float = 0.0,
) -> StepBytes:
    """Return the bytes of a step.

    Parameters
    ----------
    rows : that it moves.
    dense_bytes : of the gradients of the dense part.
    dirty_rows : of commits, by step.
    """
    trainers, form = profile.trainers, profile.example_bytes
    examples = profile.batch * form.fields
    placed = _SLOT_BYTES + form.id
    lists = rows.fetched + rows.evicted + dirty_rows
    row_columns = _SLOT_BYTES + _OWNER_BYTES + _user_bytes(trainers)
    ends = _LISTS * _END_BYTES * len(profile.tables) * trainers
    return StepBytes(
        read=examples + form.ids,
        dispatched=examples + rows.place_bytes + rows.listed * row_columns + lists * placed + ends,
        requested=rows.fetched * _ID_BYTES,
        fetched=rows.fetched * row.row_bytes,
        written=(rows.evicted + dirty_rows) * (_ID_BYTES + row.row_bytes),
        critical=rows.critical_gradients * row.gradient_bytes + rows.critical_rows * row.row_bytes,
        delayed=rows.delayed_gradients * row.gradient_bytes + rows.delayed_rows * row.row_bytes,
        averaged=2.0 * (trainers - 1) * dense_bytes,
    )


def _user_bytes(trainers: int) -> int:
    """Return the bytes of a row's users and next users: two bits for each trainer."""
    return next(size for size in (1, 2, 4, 8) if 2 * trainers <= 8 * size)


def role_bytes(
    total: StepBytes, *, trainers: int, servers: int, readers: int
) -> Mapping[str, LinkBytes]:
    """Return the bytes that one process of each role sends and receives, by equal shares."""
    between = total.critical + total.delayed + total.averaged
    to_servers = total.requested + total.written
    return {
        "trainer": LinkBytes(
            sent=(to_servers + between) / trainers,
            received=(total.dispatched + total.fetched + between) / trainers,
        ),
        "server": LinkBytes(sent=total.fetched / servers, received=to_servers / servers),
        "cacher": LinkBytes(sent=total.dispatched, received=total.read),
        "reader": LinkBytes(sent=total.read / readers, received=0.0),
    }
