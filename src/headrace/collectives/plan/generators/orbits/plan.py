"""A symmetric plan: the sends of one rank, and the symmetries that map them to all others'.

A group of permutations acts *simply transitively* on the ranks: for every rank x exactly one
element g_x takes rank 0 to rank x. Rank x does what rank 0 does, mapped by g_x: if
rank 0 sends rank b's block to rank s, then rank x sends rank g_x(b)'s block to rank g_x(s). All
sends of a plan for 4,096 ranks so take one rank's sends, and all is proven, simulated and stored
at that size.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.facades import public_value

ORBIT_COLLECTIVES = frozenset(
    {
        Collective.ALLGATHER,
        Collective.REDUCE_SCATTER,
        Collective.ALLREDUCE,
        Collective.ALL_TO_ALL,
    }
)
"""The collectives in which all ranks are alike."""

SEND_COLUMNS = {
    name: np.dtype(dtype)
    for name, dtype in {
        "dst": np.int32,
        "block": np.int32,
        "origin": np.int32,
        "chunk": np.int32,
        "reduce": np.uint8,
        "message": np.int32,
    }.items()
}

_FREE_CHUNKS = 1 << 16
"""Chunks to be received that a plan may have without the sends for them."""


@public_value("headrace.collectives", eq=False, repr=False)
class OrbitPlan(
    ArtifactValue, kind="orbit-plan", schema=1, command="headrace collectives synthesize"
):
    """The sends of rank 0, and the group that maps them to the sends of all ranks.

    Attributes
    ----------
    demand : one of `ORBIT_COLLECTIVES`; an allreduce has a multiple of `ranks` chunks, of which
        each rank owns as many (rank ``c * ranks // chunks`` owns chunk c).
    generators : (k, ranks) int32, permutations that generate the group; rank r goes to ``[r]``.
    sends : `SEND_COLUMNS`. Row by row rank 0 sends to rank `dst` chunk `chunk` of rank `block`'s
        block: the block that it gathers from, scatters to, owns, or (all_to_all) is due there.
        All_to_all only: of what rank `origin` has for `block`; else `origin` is 0. With `reduce`
        the chunk is combined. Rows of one `message` are consecutive and have the same `dst`; the
        numbers start at 0 and grow by 1, in the order in which messages are to begin.

    Raises
    ------
    ProgramError : if a column is missing, mistyped or out of range, or a generator is no
        permutation.
    """

    demand: Demand
    generators: np.ndarray
    sends: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        n = self.demand.ranks
        if self.demand.collective not in ORBIT_COLLECTIVES:
            raise ProgramError(
                f"an orbit plan is for {', '.join(sorted(ORBIT_COLLECTIVES))}; "
                f"{self.demand.collective} has a rank that differs from the others"
            )
        if self.demand.collective is Collective.ALLREDUCE and self.demand.chunks % n:
            raise ProgramError(f"chunks is {self.demand.chunks}, needs a multiple of {n}")
        _check_generators(self.generators, n)
        # By symmetry every rank sends as many chunks as it needs; verifying takes room for each.
        needed, rows = (n - 1) * self.block_chunks, len(self.sends["dst"])
        if needed > max(_FREE_CHUNKS, rows):
            raise ProgramError(
                f"sends has {rows} rows, needs at least {needed} for {self.demand.collective} of "
                f"{n} ranks with {self.block_chunks} chunks a block"
            )
        _check_sends(self.sends, n, self.block_chunks)

    @property
    def description(self) -> str:
        """The collective, and the numbers of sends and generators."""
        return (
            f"{self.demand.description}, {len(self.sends['dst'])} sends of rank 0, "
            f"{len(self.generators)} generators of the group"
        )

    @classmethod
    def of(
        cls,
        collective: Collective,
        chunks: int,
        generators: np.ndarray,
        columns: Mapping[str, np.ndarray],
    ) -> "OrbitPlan":
        """Make a plan of columns of any integer types."""
        return cls(
            demand=Demand(collective=collective, ranks=generators.shape[1], chunks=chunks),
            generators=generators,
            sends={
                name: np.ascontiguousarray(columns[name], dtype=dtype)
                for name, dtype in SEND_COLUMNS.items()
            },
        )

    @property
    def block_chunks(self) -> int:
        """Number of chunks that a rank owns (of an allreduce), or chunks a block."""
        whole = self.demand.collective is Collective.ALLREDUCE
        return self.demand.chunks // self.demand.ranks if whole else self.demand.chunks

    @property
    def messages(self) -> int:
        """Number of messages that each rank sends."""
        message = self.sends["message"]
        return int(message[-1]) + 1 if len(message) else 0

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        head = {
            "collective": self.demand.collective.value,
            "ranks": self.demand.ranks,
            "chunks": self.demand.chunks,
            "generators": len(self.generators),
        }
        return head, {"generators": {"image": self.generators.ravel()}, "sends": self.sends}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "orbit plan") -> "OrbitPlan":
        """Rebuild a plan.

        A file is not trusted: prove it with `verify_orbits` before relying on it.

        Raises
        ------
        ProgramError : if a head field or column is missing, mistyped or out of range.
        """
        head = artifact.head
        try:
            collective = Collective(fields.text(head["collective"]))
            ranks, chunks = fields.integer(head["ranks"]), fields.integer(head["chunks"])
            count = fields.integer(head["generators"])
            image = np.asarray(artifact.tables["generators"]["image"])
            sends = dict(artifact.tables["sends"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProgramError(
                f"{source}: needs collective, ranks, chunks, generators and the tables "
                f"'generators' and 'sends': {error!r}"
            ) from error
        if ranks > 1 and not count:
            raise ProgramError(f"{source}: field 'generators' is 0, needs more for {ranks} ranks")
        if count < 0 or ranks < 1 or len(image) != count * ranks:
            raise ProgramError(
                f"{source}: field 'generators' is {count} for {ranks} ranks, but the table holds "
                f"{len(image)} images"
            )
        try:
            demand = Demand(collective=collective, ranks=ranks, chunks=chunks)
            return cls(demand=demand, generators=image.reshape(count, ranks), sends=sends)
        except ProgramError as error:
            raise ProgramError(f"{source}: {error}") from error


def _check_generators(generators: np.ndarray, ranks: int) -> None:
    if generators.ndim != 2 or generators.shape[1] != ranks or generators.dtype != np.int32:
        raise ProgramError(
            f"generators has shape {generators.shape} and type {generators.dtype}, needs "
            f"(any, {ranks}) and int32"
        )
    if len(generators) > ranks.bit_length():
        raise ProgramError(
            f"generators has {len(generators)} permutations, needs at most {ranks.bit_length()}: "
            f"each that is of use doubles the group, which has {ranks} elements"
        )
    everyone = np.arange(ranks)
    for index, perm in enumerate(generators):
        if not np.array_equal(np.sort(perm), everyone):
            raise ProgramError(f"generators[{index}] is no permutation of {ranks} ranks")


def _check_sends(sends: dict[str, np.ndarray], ranks: int, chunks: int) -> None:
    if set(sends) != set(SEND_COLUMNS):
        raise ProgramError(f"sends has columns {sorted(sends)}, needs {sorted(SEND_COLUMNS)}")
    if len({len(column) for column in sends.values()}) > 1:
        raise ProgramError("sends: columns differ in length")
    limits = {"dst": ranks, "block": ranks, "origin": ranks, "chunk": chunks, "reduce": 2}
    for name, dtype in SEND_COLUMNS.items():
        column = sends[name]
        if column.dtype != dtype:
            raise ProgramError(f"sends.{name} has type {column.dtype}, needs {dtype}")
        high = limits.get(name, len(column))
        bad = np.flatnonzero((column < 0) | (column >= high))
        if len(bad):
            raise ProgramError(f"sends.{name}[{bad[0]}] is {column[bad[0]]}, needs 0 to {high - 1}")
    step = np.diff(sends["message"], prepend=-1)
    moved = np.diff(sends["dst"], prepend=-1) != 0
    for bad, problem in (
        (sends["dst"] == 0, "dst is 0: rank 0 sends to itself, needs another rank"),
        ((step < 0) | (step > 1), "message needs to start at 0, then stay or grow by 1"),
        ((step == 0) & moved, "dst changes within a message, needs one receiver"),
    ):
        if bad.any():
            raise ProgramError(f"sends: row {int(np.argmax(bad))}: {problem}")
