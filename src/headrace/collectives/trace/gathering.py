"""All ranks' records of one call, at rank 0 and on its clock."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.program import Program
from headrace.collectives.trace.clocks import Offset, clock_identity, clock_offset
from headrace.executor import Recorded

if TYPE_CHECKING:
    from headrace.executor import Executor

_TAG = 0xFFFF_7C11
_HEAD = 4  # two words of the clock's identity, called_ns, ended_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """Times in ns from the first rank's call on, for charts: the steps of a lane never overlap.

    Attributes
    ----------
    called_ns, ended_ns : int64, by rank.
    began_ns, passed_ns, bytes : int64, by step of the program. A step that moves something takes
        at least 1 ns.
    """

    called_ns: np.ndarray
    ended_ns: np.ndarray
    began_ns: np.ndarray
    passed_ns: np.ndarray
    bytes: np.ndarray

    @property
    def total_us(self) -> float:
        """From the first rank's call to the last rank's end."""
        return float(self.ended_ns.max() - self.called_ns.min()) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatheredTrace(Times):
    """One call of a program at all ranks, in ns on the clock of rank 0.

    Attributes
    ----------
    uncertainty_ns : int64, by rank: the times of a rank may be wrong by so much against those of
        rank 0.
    """

    uncertainty_ns: np.ndarray

    def to_json(self) -> dict[str, list[int]]:
        """Return the columns as lists."""
        return {column.name: getattr(self, column.name).tolist() for column in fields(self)}

    @classmethod
    def from_json(cls, columns: dict[str, Any]) -> "GatheredTrace":
        """Rebuild what `to_json` returned."""
        names = [column.name for column in fields(cls)]
        return cls(**{name: np.array(columns[name], dtype=np.int64) for name in names})


def gather(executor: "Executor", program: Program, recorded: Recorded) -> GatheredTrace | None:
    """Gather all ranks' records of one call at rank 0; every rank calls this.

    Call it soon after the traced call, as clocks of different machines drift apart.

    Returns
    -------
    Trace | None
        At rank 0, None elsewhere.

    Raises
    ------
    ProgramError : `recorded` is not of `program`.
    CommunicationError : a rank is gone.
    """
    if program.demand.ranks != executor.ranks:
        raise ProgramError(
            f"the program is for {program.demand.ranks} ranks, this group has {executor.ranks}"
        )
    steps = steps_of(program)
    mine = int(steps[executor.rank])
    if len(recorded.bytes) != mine:
        raise ProgramError(
            f"{len(recorded.bytes)} steps were recorded at rank {executor.rank}, the program has "
            f"{mine} there: needs a record of this program"
        )
    if executor.rank:
        _report(executor, recorded)
        return None
    rows, errors = [recorded], [0]
    for peer in range(1, executor.ranks):
        record, offset = _collect(executor, peer, int(steps[peer]))
        rows.append(_shifted(record, -offset.offset_ns))
        errors.append(offset.uncertainty_ns)
    return GatheredTrace(
        called_ns=np.array([row.called_ns for row in rows], dtype=np.int64),
        ended_ns=np.array([row.ended_ns for row in rows], dtype=np.int64),
        began_ns=np.concatenate([row.began_ns for row in rows]),
        passed_ns=np.concatenate([row.passed_ns for row in rows]),
        bytes=np.concatenate([row.bytes for row in rows]),
        uncertainty_ns=np.array(errors, dtype=np.int64),
    )


def steps_of(program: Program) -> np.ndarray:
    """Return the number of steps by rank; a rank's steps follow those of the rank before."""
    rank = program.lanes["rank"][program.steps["lane"]]
    return np.bincount(rank, minlength=program.demand.ranks)


def _report(executor: "Executor", recorded: Recorded) -> None:
    head = np.frombuffer(clock_identity(), dtype=np.int64)
    columns = (recorded.began_ns, recorded.passed_ns, recorded.bytes)
    message = np.concatenate([head, [recorded.called_ns, recorded.ended_ns], *columns])
    message = np.ascontiguousarray(message, dtype=np.int64)
    executor.wait(executor.send(message.ctypes.data, message.nbytes, 0, _TAG))
    same_clock = np.zeros(1, dtype=np.int64)
    executor.wait(executor.recv(same_clock.ctypes.data, 8, 0, _TAG))
    if same_clock[0]:
        clock_offset(executor, 0)


def _collect(executor: "Executor", peer: int, steps: int) -> tuple[Recorded, Offset]:
    message = np.zeros(_HEAD + 3 * steps, dtype=np.int64)
    executor.wait(executor.recv(message.ctypes.data, message.nbytes, peer, _TAG))
    differs = np.array([message[:2].tobytes() != clock_identity()], dtype=np.int64)
    executor.wait(executor.send(differs.ctypes.data, 8, peer, _TAG))
    offset = clock_offset(executor, peer) if differs[0] else None
    columns = message[_HEAD:].reshape(3, steps)
    record = Recorded.of(int(message[2]), int(message[3]), columns.T)
    return record, offset or Offset(offset_ns=0, uncertainty_ns=0)


def _shifted(recorded: Recorded, by_ns: int) -> Recorded:
    return replace(
        recorded,
        called_ns=recorded.called_ns + by_ns,
        ended_ns=recorded.ended_ns + by_ns,
        began_ns=recorded.began_ns + by_ns,
        passed_ns=recorded.passed_ns + by_ns,
    )
