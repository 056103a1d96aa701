"""Interfaces of programs and proofs to the executor, and one rank's part of a program, loaded.

`headrace.collectives.program.Program` and `headrace.collectives.plan.verify.Proof` are of these
forms; the executor depends on neither planning nor proving.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from headrace import _native
from headrace.facades import offered_by, public_value

Columns = Mapping[str, np.ndarray]
"""Columns of a table by name: one-dimensional arrays of one length."""

CUSTOM = "custom"
"""Name of collectives whose results may combine any number of ranks."""


@offered_by("headrace.executor")
class ProgramDemand(Protocol):
    """Postcondition of a program, over slots of one chunk each, on every rank."""

    @property
    def collective(self) -> str:
        """Name of the collective, as in `headrace._native.Kind`."""
        ...

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    @property
    def slots(self) -> int:
        """Number of slots of every rank's buffer, without scratch memory."""
        ...

    def final(self, rank: int, /) -> Sequence[tuple[int, int, int]]:
        """Return the slots that hold results at `rank`: (slot, datum, ranks combined)."""
        ...


@offered_by("headrace.executor")
class ExecutableProgram(Protocol):
    """Lanes of steps for every rank, with dependencies between a rank's steps.

    The columns are those of `headrace.collectives.program`: lanes sorted by rank (rank, direction,
    peer, channel), steps grouped by lane (lane, op, slot, src_slot, count), dependencies sorted by
    step (step, on).
    """

    @property
    def demand(self) -> ProgramDemand:
        """Its postcondition."""
        ...

    @property
    def scratch_slots(self) -> int:
        """Number of slots of scratch memory, which follow the buffer's."""
        ...

    @property
    def lanes(self) -> Columns:
        """Lanes of all ranks; the peer of a local lane is -1."""
        ...

    @property
    def steps(self) -> Columns:
        """Steps of all lanes, in the order in which a lane runs them."""
        ...

    @property
    def dependencies(self) -> Columns:
        """Pairs of steps of one rank, the second before the first."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal: computed anew, so that a change shows."""
        ...


@offered_by("headrace.executor")
class ProgramProof(Protocol):
    """Result of a verifier."""

    def check(self, digest: str, /) -> None:
        """Raise an error unless this proves the program of that digest, by today's verifier."""
        ...


@public_value("headrace.executor")
class LoadedProgram:
    """A proven program, loaded for one rank.

    Attributes
    ----------
    native : this rank's lanes, steps and dependencies.
    collective : its name.
    channels : connections per pair of ranks that it uses.
    digest : of the program.
    """

    native: _native.Program
    collective: str
    channels: int
    digest: str


def load_program(program: ExecutableProgram, proof: ProgramProof, rank: int) -> LoadedProgram:
    """Load one rank's part of a program, if `proof` is its proof."""
    digest = program.digest
    proof.check(digest)
    native = _rank_program(program, rank, digest)
    return LoadedProgram(
        native=native,
        collective=program.demand.collective,
        channels=native.channels,
        digest=digest,
    )


def _rank_program(program: ExecutableProgram, rank: int, digest: str) -> _native.Program:
    """Return one rank's lanes, steps and dependencies of `program`, with local indices."""
    lanes, steps, dependencies = program.lanes, program.steps, program.dependencies
    first_lane, end_lane = np.searchsorted(lanes["rank"], [rank, rank + 1])
    first_step, end_step = np.searchsorted(steps["lane"], [first_lane, end_lane])
    first, end = np.searchsorted(dependencies["step"], [first_step, end_step])
    own_lanes, own_steps = slice(first_lane, end_lane), slice(first_step, end_step)
    results = [slot for slot, _, _ in program.demand.final(rank)]

    def column(values: np.ndarray, offset: int = 0) -> np.ndarray:
        return np.ascontiguousarray(values - values.dtype.type(offset))

    return _native.Program(
        rank=rank,
        ranks=program.demand.ranks,
        slots=program.demand.slots,
        scratch_slots=program.scratch_slots,
        result_slot=min(results, default=0),
        result_slots=len(results),
        lane_direction=column(lanes["direction"][own_lanes]),
        lane_peer=column(lanes["peer"][own_lanes]),
        lane_channel=column(lanes["channel"][own_lanes]),
        step_lane=column(steps["lane"][own_steps], first_lane),
        step_op=column(steps["op"][own_steps]),
        step_slot=column(steps["slot"][own_steps]),
        step_source_slot=column(steps["src_slot"][own_steps]),
        step_count=column(steps["count"][own_steps]),
        dependency_step=column(dependencies["step"][first:end], first_step),
        dependency_on=column(dependencies["on"][first:end], first_step),
        kind=getattr(_native.Kind, program.demand.collective),
        mark=int(digest[:8], 16),
    )
