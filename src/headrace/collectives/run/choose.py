"""Choice of the verified program for a call.

The choice is a pure function of (plan book, collective, bytes, root, group size), so that all ranks
make the same without communication. A collective that the book has no plan for gets a template,
lowered and verified at first use and kept for the life of the process.
"""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import VERIFIER_VERSION, Proof, verify
from headrace.collectives.program import Op, Program, Schedule, Transfer

if TYPE_CHECKING:
    from headrace.collectives.plan.book import PlanBook
    from headrace.collectives.plan.plan import Plan

# Without a measurement these are the orders of magnitude of common networks: a message's fixed
# cost (tens of microseconds) is as long as the wire time of some ten KiB.
_SHORT_BYTES = 16 * 1024
_MIDDLING_BYTES = 256 * 1024
_FEW_RANKS = 4
_CHAIN_RANKS = 16

# The size of a frame on the wire has 32 bits; half of that leaves room for chunks that are larger
# by an element than others.
_LONGEST_STEP_BYTES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A program with its proof.

    Attributes
    ----------
    origin : description of its source.
    blockwise : no step spans blocks, so blocks may be anywhere in memory.
    keeps_inputs : no step writes to another rank's block (of a reduce_scatter or scatter).
    """

    program: Program
    proof: Proof
    origin: str
    blockwise: bool
    keeps_inputs: bool

    @property
    def chunks(self) -> int:
        """Return the number of chunks per block into which the segments of a call are divided."""
        return self.program.demand.chunks


class Chooser:
    """Chooses the programs of one group of `ranks` ranks.

    Parameters
    ----------
    book : a plan book that is valid for this group; else None.
    first : the book that the group began with, for calls that `book` has no plans for.
    one_host : all ranks are on one host and share its memory.
    channels : connections per pair of ranks; large calls are spread over all of them.
    """

    def __init__(
        self,
        ranks: int,
        book: "PlanBook | None" = None,
        first: "PlanBook | None" = None,
        *,
        one_host: bool = False,
        channels: int = 1,
    ) -> None:
        self._ranks = ranks
        self._one_host = one_host
        self._channels = channels
        self._book = book
        self.first = first or book
        self._planned: dict[str, Choice] = {}  # by the program's digest

    def with_book(self, book: "PlanBook") -> "Chooser":
        """Return a chooser of the same group with another book."""
        return Chooser(
            self._ranks, book, self.first, one_host=self._one_host, channels=self._channels
        )

    def choose(self, collective: Collective, total_bytes: int, root: int = 0) -> Choice:
        """Return the program for a call of `total_bytes` (as `Demand.chunk_bytes` counts them)."""
        for book in (self._book, self.first):
            plan = None if book is None else book.choose(collective, total_bytes, root)
            if plan is not None and _longest_step_bytes(plan.program, total_bytes) <= (
                _LONGEST_STEP_BYTES
            ):
                return self._from_plan(plan)
        find = _template_within_a_host if self._one_host else _template
        template, chunks = find(collective, total_bytes, self._ranks)
        channels = self._connections(collective, total_bytes)
        demand = Demand(
            collective=collective, ranks=self._ranks, chunks=chunks * channels, root=root
        )
        pieces = 1 + int(demand.chunk_bytes(total_bytes)) // _LONGEST_STEP_BYTES
        return _from_template(template, collective, self._ranks, chunks, root, pieces, channels)

    def planned(self) -> list[Choice]:
        """Return all choices of the book, each once."""
        for entry in () if self._book is None else self._book.entries:
            self._from_plan(entry.plan)
        return list(self._planned.values())

    def block_by_block(self, collective: Collective) -> Choice:
        """Return a program for blocks that differ in size.

        It is independent of the sizes, which not every rank knows. That of an all-to-all is the
        template of one with equal blocks, as which other ranks may have called it.
        """
        channels = self._connections(collective, 0)
        return _from_template("direct", collective, self._ranks, 1, 0, 1, channels)

    def _connections(self, collective: Collective, total_bytes: int) -> int:
        """Return the number of connections of a pair that the chunks of a call are spread over."""
        # the ranks of an all-to-all may know the sizes of their own blocks only
        spread = total_bytes > _MIDDLING_BYTES or collective is Collective.ALL_TO_ALL
        # several rings in shared memory are no faster than one
        return self._channels if spread and not self._one_host else 1

    def _from_plan(self, plan: "Plan") -> Choice:
        digest = plan.proof.program_digest
        choice = self._planned.get(digest)
        if choice is None:
            program, proof = plan.program, plan.proof
            if proof.verifier_version != VERIFIER_VERSION:
                proof = verify(program)
            choice = self._planned[digest] = Choice(
                program=program,
                proof=proof,
                origin=f"plan book: {plan.generator}",
                blockwise=_is_blockwise(program),
                keeps_inputs=_keeps_inputs(program),
            )
        return choice


def _template(collective: Collective, total_bytes: int, ranks: int) -> tuple[str, int]:
    """Return (name of the template, chunks) for a network that was not measured."""
    short = total_bytes <= _SHORT_BYTES
    match collective:
        case Collective.ALLREDUCE:
            if short:
                return ("full_exchange" if ranks <= _FEW_RANKS else "recursive_doubling"), 1
            if total_bytes <= _MIDDLING_BYTES:
                return "halving_doubling", ranks
            return "ring", ranks
        case Collective.BROADCAST | Collective.REDUCE:
            if short and ranks <= _FEW_RANKS:
                return "direct", 1
            if short or ranks > _CHAIN_RANKS:
                return "double_binary_tree", 2
            return "ring", 1  # a chain; it streams, so one chunk suffices
        case Collective.ALLGATHER | Collective.REDUCE_SCATTER:
            return ("direct" if short else "ring"), 1
        case _:
            return "direct", 1


def _template_within_a_host(
    collective: Collective, total_bytes: int, ranks: int
) -> tuple[str, int]:
    """Return (name of the template, chunks) where messages are cheap and processors copy all bytes.

    Every pair has a ring of its own, so the fewest copies and the fewest rounds are best.
    """
    if collective is Collective.ALLREDUCE and total_bytes > _SHORT_BYTES:
        return "direct", ranks
    if collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
        return "direct", 1
    return _template(collective, total_bytes, ranks)


def _longest_step_bytes(program: Program, total_bytes: int) -> float:
    return program.demand.chunk_bytes(total_bytes) * int(program.steps["count"].max(initial=0))


@functools.cache
def _from_template(
    name: str,
    collective: Collective,
    ranks: int,
    chunks: int,
    root: int,
    pieces: int = 1,
    channels: int = 1,
) -> Choice:
    """Make a template's program.

    Several `pieces` a chunk keep the steps of huge calls short; for several channels a chunk is cut
    into as many times more, spread over the connections of a pair.
    """
    template: Callable[[Demand], Schedule] = getattr(templates, name)
    cuts = pieces * channels
    demand = Demand(collective=collective, ranks=ranks, chunks=chunks * cuts, root=root)
    schedule = template(demand)
    program = lower(schedule if cuts == 1 else _chunk_by_chunk(schedule, channels))
    return Choice(
        program=program,
        proof=verify(program),
        origin=f"template {name}",
        blockwise=_is_blockwise(program),
        keeps_inputs=_keeps_inputs(program),
    )


def _chunk_by_chunk(schedule: Schedule, channels: int) -> Schedule:
    """Cut transfers into chunks, each on the connection of its pair with the least so far."""
    sent: Counter[tuple[int, int]] = Counter()  # all chunks are of one size
    transfers: list[Transfer] = []
    for transfer in schedule.transfers:
        src, dst, src_slot, dst_slot, reduce, count, _, _ = transfer
        for k in range(count):
            channel = 0 if src == dst else sent[src, dst] % channels
            transfers.append(Transfer(src, dst, src_slot + k, dst_slot + k, reduce, 1, channel))
            sent[src, dst] += 1
    return replace(schedule, transfers=tuple(transfers))


def _keeps_inputs(program: Program) -> bool:
    demand, steps = program.demand, program.steps
    if demand.collective not in (Collective.REDUCE_SCATTER, Collective.SCATTER):
        return False
    writes = steps["op"] != Op.SEND
    rank = program.lanes["rank"][steps["lane"][writes]]
    first, end = steps["slot"][writes], (steps["slot"] + steps["count"])[writes]
    own = (first >= rank * demand.chunks) & (end <= (rank + 1) * demand.chunks)
    return bool((own | (first >= demand.slots)).all())


def _is_blockwise(program: Program) -> bool:
    chunks, steps = program.demand.chunks, program.steps
    for column in ("slot", "src_slot"):
        used = steps[column] >= 0
        first, count = steps[column][used], steps["count"][used]
        if (first // chunks != (first + count - 1) // chunks).any():
            return False
    return True
