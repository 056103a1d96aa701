"""Schedules and programs: the two forms of a plan's body.

A `Schedule` is the output of generators: a list of transfers between ranks in one causal global
order. A `Program` is the input of the executor: per rank, *lanes* (an ordered stream of steps to
one peer in one direction, or of local steps) with explicit dependencies.
`plan.lower` turns the first into the second; `plan.verify` proves the second.

Meaning of a program
--------------------
- The k-th step of the send lane (r -> p, channel) feeds the k-th step of the receive lane
  (p <- r, channel). Both have the same `count`.
- The steps of a lane run one after another. Steps of different lanes run concurrently unless a
  dependency orders them.
- A dependency ``step`` on ``on`` (same rank): if both cover exactly the same slots, byte k of
  `step` waits for byte k of `on` (streaming); otherwise `step` waits for all of `on`. Local steps
  (``COPY``, ``REDUCE``) never stream: they wait, and are waited for, as a whole.
- ``RECV_REDUCE`` combines what arrives into the slot: slot = slot (op) arriving. ``COPY`` writes
  `slot` from `src_slot`; ``REDUCE`` combines `src_slot` into `slot`. `count` consecutive slots
  are covered, from `slot` (and `src_slot`) on.
- Slots from ``demand.slots`` on are scratch; scratch slot k is as large as data slot
  ``k % demand.slots``.
- Steps with the same `message` number are one *message*: they follow one another in one lane, and
  the two ends of a send and receive pair have the same number. Numbers grow in the planned order of
  starts, over all ranks. A local step is a message by itself. Cost models charge alpha once a
  message; an executor may move the parts of a message separately, or all as one: it then begins
  when all of its steps may, and ends all of them together.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue
from headrace.collectives.custom import demand_from_head, demand_to_head
from headrace.collectives.demand import Demand
from headrace.collectives.errors import ProgramError
from headrace.facades import offered_by, public_value


class Op(IntEnum):
    """Operation of a step."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3
    REDUCE = 4


class Direction(IntEnum):
    """Direction of a lane."""

    SEND = 0
    RECV = 1
    LOCAL = 2


@offered_by("headrace.collectives")
class Transfer(NamedTuple):
    """`count` chunks from slot `src_slot` of `src` to slot `dst_slot` of `dst`.

    With `reduce` they are combined into the destination, else they replace it. ``src == dst`` is
    a local copy (or local reduction). With `joined` it belongs to the same message as the transfer
    before it in the schedule, which has the same `src`, `dst` and `channel`.
    """

    src: int
    dst: int
    src_slot: int
    dst_slot: int
    reduce: bool = False
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  (hides tuple.count)
    channel: int = 0
    joined: bool = False


@public_value("headrace.collectives", eq=False)
class Schedule:
    """Transfers in one global order: each comes after all that it depends on.

    Attributes
    ----------
    transfers : in order; `lower` derives every dependency from this order.
    scratch_slots : slots after ``demand.slots`` available at every rank.
    begins : for every message, in the order of transfers, its position in the order of starts (a
        local transfer counts as one), which is the priority on links; it may differ from the order
        of combining. Empty: as in `transfers`.
    """

    demand: Demand
    transfers: tuple[Transfer, ...]
    scratch_slots: int = 0
    begins: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<Schedule: {self.demand.description}, {len(self.transfers)} transfers>"

    @classmethod
    def of(
        cls, demand: Demand, transfers: Iterable[Transfer], scratch_slots: int = 0
    ) -> "Schedule":
        """Make a schedule from any iterable of transfers."""
        return cls(demand=demand, transfers=tuple(transfers), scratch_slots=scratch_slots)


def _columns(dtypes: dict[str, type]) -> dict[str, np.dtype]:
    return {name: np.dtype(dtype) for name, dtype in dtypes.items()}


LANE_COLUMNS = _columns(
    {"rank": np.int32, "direction": np.uint8, "peer": np.int32, "channel": np.int32}
)
STEP_COLUMNS = _columns(
    {
        "lane": np.int32,
        "op": np.uint8,
        "slot": np.int32,
        "src_slot": np.int32,
        "count": np.int32,
        "message": np.int32,
    }
)
DEPENDENCY_COLUMNS = _columns({"step": np.int32, "on": np.int32})

MAX_CHANNELS = 64
"""Most channels of a plan that is read: each is a connection between two ranks."""

_FREE_SLOTS, _STEP_SLOTS = 1 << 18, 8
"""Most slots that steps move and a demand names: fixed part, and part per step.

Checking and running take time and memory by the slot, so a short file must not stand for very many.
The part per step is ample: templates of thousands of ranks move one or two slots a step.
"""

_FREE_SCRATCH = 64
"""Scratch slots of any program; more need steps that move as many slots."""

_FREE_BITS, _STEP_BITS = 1 << 32, 1 << 12
"""The same for the sets of contributing ranks of combined values, in bits."""


@public_value("headrace.collectives", eq=False, repr=False)
class Program(ArtifactValue, kind="program", schema=2):
    """The executable form, all ranks in one value. Columns are one-dimensional arrays.

    Version 2 of the schema groups steps into messages.

    Attributes
    ----------
    lanes : `LANE_COLUMNS`, sorted by rank; `peer` is -1 for local lanes.
    steps : `STEP_COLUMNS`, grouped by lane in lane order; within a lane in running order.
        `src_slot` is -1 unless the op is COPY or REDUCE. `message` never falls within a lane.
    dependencies : `DEPENDENCY_COLUMNS`, sorted; both are indices into `steps`, of one rank.

    Raises
    ------
    ProgramError : if a column is missing or mistyped, or an index is out of range.
    """

    demand: Demand
    scratch_slots: int
    lanes: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    dependencies: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        _check_columns("lanes", self.lanes, LANE_COLUMNS)
        _check_columns("steps", self.steps, STEP_COLUMNS)
        _check_columns("dependencies", self.dependencies, DEPENDENCY_COLUMNS)
        _check_size(self)
        if self.scratch_slots < 0:
            raise ProgramError(f"scratch_slots is {self.scratch_slots}, needs at least 0")
        ranks, slots = self.demand.ranks, self.demand.slots + self.scratch_slots
        lanes, steps, dependencies = self.lanes, self.steps, self.dependencies
        _check_range("lanes.rank", lanes["rank"], 0, ranks)
        _check_range("lanes.direction", lanes["direction"], 0, len(Direction))
        _check_range("lanes.peer", lanes["peer"], -1, ranks)
        _check_range("lanes.channel", lanes["channel"], 0, 1 << 15)
        _check_range("steps.lane", steps["lane"], 0, len(lanes["rank"]))
        _check_range("steps.op", steps["op"], 0, len(Op))
        _check_range("steps.count", steps["count"], 1, slots + 1)
        _check_range("steps.slot", steps["slot"], 0, slots)
        _check_range("steps.slot + count", steps["slot"] + steps["count"], 1, slots + 1)
        _check_range("steps.src_slot", steps["src_slot"], -1, slots)
        _check_range("steps.message", steps["message"], 0, 1 << 31)
        _check_range("steps.src_slot + count", steps["src_slot"] + steps["count"], 0, slots + 1)
        for name in ("step", "on"):
            _check_range(f"dependencies.{name}", dependencies[name], 0, len(steps["op"]))
        if np.any(np.diff(lanes["rank"]) < 0):
            raise ProgramError("lanes.rank is not sorted")
        if np.any(np.diff(steps["lane"]) < 0):
            raise ProgramError("steps.lane is not sorted")

    @property
    def description(self) -> str:
        """The collective, and the numbers of lanes and steps."""
        return (
            f"{self.demand.description}, {len(self.lanes['rank'])} lanes, "
            f"{len(self.steps['op'])} steps"
        )

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        head = {**demand_to_head(self.demand), "scratch_slots": self.scratch_slots}
        tables = {"lanes": self.lanes, "steps": self.steps, "dependencies": self.dependencies}
        return head, tables

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "program") -> "Program":
        """Rebuild a program.

        Raises
        ------
        ProgramError : if the schema is another, or a head field or column is missing, mistyped or
            out of range.
        """
        if artifact.schema != cls.SCHEMA:
            raise ProgramError(
                f"{source}: field 'schema' is {artifact.schema}, needs {cls.SCHEMA}: "
                "make the plan again"
            )
        head = artifact.head
        for name in ("collective", "ranks", "chunks", "root", "scratch_slots"):
            if name not in head:
                raise ProgramError(f"{source}: field '{name}' is missing")
        demand = demand_from_head(head, source)
        try:
            scratch_slots = fields.integer(head["scratch_slots"])
        except TypeError as error:
            raise ProgramError(f"{source}: field 'scratch_slots': {error}") from error
        tables: dict[str, dict[str, np.ndarray]] = {}
        for name in ("lanes", "steps", "dependencies"):
            if name not in artifact.tables:
                raise ProgramError(f"{source}: table '{name}' is missing")
            tables[name] = dict(artifact.tables[name])
        try:
            program = cls(demand=demand, scratch_slots=scratch_slots, **tables)
            _check_range("lanes.channel", program.lanes["channel"], 0, MAX_CHANNELS)
            return program
        except ProgramError as error:
            raise ProgramError(f"{source}: {error}") from error


def _check_columns(table: str, columns: dict[str, np.ndarray], types: dict[str, np.dtype]) -> None:
    if set(columns) != set(types):
        raise ProgramError(f"{table} has columns {sorted(columns)}, needs {sorted(types)}")
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise ProgramError(f"{table}: columns differ in length: {sorted(lengths)}")
    for name, dtype in types.items():
        if columns[name].dtype != dtype:
            raise ProgramError(f"{table}.{name} has type {columns[name].dtype}, needs {dtype}")


def _check_size(program: Program) -> None:
    """Check the program's sizes against its number of steps, before anything is allocated."""
    demand, op, count = program.demand, program.steps["op"], program.steps["count"]
    steps = len(op)
    most = _FREE_SLOTS + _STEP_SLOTS * steps
    moved = int(count.sum(dtype=np.float64))
    if moved > most:
        raise ProgramError(
            f"steps.count is {moved} slots in all, needs at most {most} in {steps} steps: cut the "
            "data into fewer chunks"
        )
    if program.scratch_slots > max(moved, _FREE_SCRATCH):
        raise ProgramError(
            f"scratch_slots is {program.scratch_slots}, needs at most {max(moved, _FREE_SCRATCH)}: "
            f"the steps move {moved} slots"
        )
    # A value of the postcondition is written by a step, or held from the start by few for each.
    if demand.conditions > _FREE_SLOTS + 4 * moved:
        raise ProgramError(
            f"a {demand.collective} of {demand.ranks} ranks in {demand.chunks} chunks has "
            f"{demand.conditions} values to hold or to deliver, needs at most "
            f"{_FREE_SLOTS + 4 * moved} for steps that move {moved}"
        )
    combined = int(count[(op == Op.RECV_REDUCE) | (op == Op.REDUCE)].sum(dtype=np.float64))
    if demand.ranks * combined > max(_FREE_BITS, _STEP_BITS * steps):
        raise ProgramError(
            f"steps combine {combined} slots of {demand.ranks} ranks, which is too much to prove: "
            f"needs at most {max(_FREE_BITS, _STEP_BITS * steps) // demand.ranks} of so many ranks"
        )


def _check_range(name: str, values: np.ndarray, low: int, high: int) -> None:
    bad = np.flatnonzero((values < low) | (values >= high))
    if len(bad):
        raise ProgramError(f"{name}[{bad[0]}] is {values[bad[0]]}, needs {low} to {high - 1}")
