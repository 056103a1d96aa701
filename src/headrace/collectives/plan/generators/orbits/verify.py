"""Prove an orbit plan correct at the size of one rank's sends.

No code here is shared with the generators of such plans. The proof has three parts.

1. *The group.* The generators' images of rank 0 are all ranks, and no element but the identity
   fixes a rank. If generators commute the second follows from the first; else every element is
   written down and each generator is applied to each.
2. *The demand* looks the same through every permutation, as those of `ORBIT_COLLECTIVES` do for
   every renaming of ranks and their blocks. So a statement about one rank holds for all.
3. *One rank.* A chunk has its holder's name: rank 0's name b for a block becomes g_s^-1(b) when it
   arrives at rank s. By symmetry all ranks send what rank 0 sends under a name, and a statement
   about a name holds once for every rank. Messages are totally ordered, and everything
   is sent strictly after it came, so no program made from the plan can deadlock.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import Collective
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.errors import VerificationError

_MAX_ELEMENTS = 1 << 26
"""Elements of the group that are computed, times ranks: 256 MB."""

_MAX_TABLE = 1 << 26
"""Largest table of a group that does not commute: elements x ranks."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class OrbitProof:
    """Certificate that the plan with this digest was proven.

    Attributes
    ----------
    sends : rows that were checked; each stands for `ranks` sends.
    """

    plan_digest: str
    ranks: int
    sends: int


def verify_orbits(plan: OrbitPlan) -> OrbitProof:
    """Prove that the expanded plan performs its collective on any number of bytes.

    Raises
    ------
    VerificationError : naming the first chunk and message that fails, and why.
    """
    names = _Names(plan)
    match plan.demand.collective:
        case Collective.ALLGATHER:
            _spreads(names, names.rows(reduce=False), "allgather")
            _none(names.rows(reduce=True), "allgather", "combines")
        case Collective.REDUCE_SCATTER:
            _combines(names, names.rows(reduce=True))
            _none(names.rows(reduce=False), "reduce_scatter", "overwrites")
        case Collective.ALLREDUCE:
            _exchanges(names)
        case _:
            _routes(names)
    return OrbitProof(
        plan_digest=plan.digest, ranks=plan.demand.ranks, sends=len(plan.sends["dst"])
    )


class _Names:
    """Rows of a plan with the sender's and the receiver's name of every chunk sent."""

    def __init__(self, plan: OrbitPlan) -> None:
        self.ranks, self.chunks = plan.demand.ranks, plan.block_chunks
        self.message = plan.sends["message"].astype(np.int64)
        self._reduce = plan.sends["reduce"] != 0
        dst = plan.sends["dst"]
        block, origin = plan.sends["block"].astype(np.int64), plan.sends["origin"].astype(np.int64)
        seen_block, seen_origin = np.empty_like(block), np.empty_like(origin)
        for to, inverse in _inverses(plan.generators, np.unique(dst).tolist()):
            rows = dst == to
            seen_block[rows] = inverse[block[rows]]
            seen_origin[rows] = inverse[origin[rows]]
        chunk = plan.sends["chunk"].astype(np.int64)
        if plan.demand.collective is not Collective.ALL_TO_ALL and origin.any():
            _fail(f"row {int(np.argmax(origin != 0))} has an origin, which only all_to_all has")
        self.block, self.origin, self.seen_block = block, origin, seen_block
        self.sent = block * self.chunks + chunk
        self.got = seen_block * self.chunks + chunk
        wide = self.ranks * self.chunks
        self.sent_item = origin * wide + self.sent
        self.got_item = seen_origin * wide + self.got

    def rows(self, *, reduce: bool) -> np.ndarray:
        return np.flatnonzero(self._reduce == reduce)

    def words(self, name: int) -> str:
        return f"chunk {name % self.chunks} of the block of the rank seen as {name // self.chunks}"

    def once(self, rows: np.ndarray, names: np.ndarray, what: str) -> np.ndarray:
        """Return for every name in which message it occurs; `_NEVER` if in none."""
        when = np.full(self.ranks * self.chunks, _NEVER)
        count = np.bincount(names[rows], minlength=len(when))
        if (count > 1).any():
            name = int(np.argmax(count > 1))
            _fail(f"{self.words(name)} is {what} {count[name]} times, needs once")
        when[names[rows]] = self.message[rows]
        return when


def _spreads(names: _Names, rows: np.ndarray, what: str) -> np.ndarray:
    """Check that every block reaches all ranks exactly once; return the message of each name."""
    got = names.once(rows, names.got, "received")
    own = got[: names.chunks]
    if (own != _NEVER).any():
        _fail(f"{what}: chunk {int(np.argmax(own != _NEVER))} comes back to its own rank")
    missing = got[names.chunks :] == _NEVER
    if missing.any():
        _fail(f"{what}: {names.words(int(np.argmax(missing)) + names.chunks)} never arrives")
    there = got.copy()
    there[: names.chunks] = -1
    early = there[names.sent[rows]] >= names.message[rows]
    if early.any():
        row = int(rows[np.argmax(early)])
        _fail(
            f"{what}: {names.words(int(names.sent[row]))} is sent in message "
            f"{names.message[row]}, but arrives only after message {there[names.sent[row]]}"
        )
    return got


def _combines(names: _Names, rows: np.ndarray) -> np.ndarray:
    """Check that every rank's contribution gets into the owner's chunk exactly once.

    A rank forwards its partial sum of a chunk once, after all contributions to it; the owner
    never does. Messages grow along the way, so the ways form a tree into the owner.
    """
    sent = names.once(rows, names.sent, "forwarded")
    own = sent[: names.chunks]
    if (own != _NEVER).any():
        _fail(f"its owner forwards chunk {int(np.argmax(own != _NEVER))}, which it must keep")
    missing = sent[names.chunks :] == _NEVER
    if missing.any():
        name = int(np.argmax(missing)) + names.chunks
        _fail(f"{names.words(name)} is never forwarded: a contribution is lost")
    late = names.message[rows] >= sent[names.got[rows]]
    if late.any():
        row = int(rows[np.argmax(late)])
        _fail(
            f"{names.words(int(names.got[row]))} is combined in message {names.message[row]}, "
            f"but was forwarded in message {sent[names.got[row]]}"
        )
    return sent


def _exchanges(names: _Names) -> None:
    down, up = names.rows(reduce=True), names.rows(reduce=False)
    forwarded = _combines(names, down)
    got = _spreads(names, up, "allreduce")
    # The owner spreads the total only when it is complete.
    complete = np.full(names.chunks, -1, dtype=np.int64)
    into = down[names.seen_block[down] == 0]
    np.maximum.at(complete, names.got[into], names.message[into])
    out = up[names.block[up] == 0]
    early = names.message[out] <= complete[names.sent[out]]
    if early.any():
        row = int(out[np.argmax(early)])
        _fail(
            f"its owner spreads chunk {int(names.sent[row])} in message {names.message[row]}, "
            f"before the last contribution comes in message {complete[names.sent[row]]}"
        )
    late = got[names.chunks :] <= forwarded[names.chunks :]
    if late.any():
        name = int(np.argmax(late)) + names.chunks
        _fail(f"the total of {names.words(name)} overwrites a partial sum not yet forwarded")


def _routes(names: _Names) -> None:
    """Check that every rank's chunk for every other gets there, and nowhere twice."""
    _none(names.rows(reduce=True), "all_to_all", "combines")
    sent = _sorted_once(names, names.sent_item, "forwarded")
    got = _sorted_once(names, names.got_item, "received")
    wide = names.ranks * names.chunks
    first = np.arange(names.chunks, wide)  # origin 0, block not 0
    if not np.isin(first, names.sent_item).all():
        name = int(first[np.argmin(np.isin(first, names.sent_item))])
        _fail(f"all_to_all: {names.words(name)} never leaves")
    if (names.block == 0).any():
        row = int(np.argmax(names.block == 0))
        _fail(f"all_to_all: message {names.message[row]} sends a chunk destined for its sender")
    if (names.got_item // wide == 0).any():
        row = int(np.argmax(names.got_item // wide == 0))
        _fail(f"all_to_all: message {names.message[row]} returns a chunk to its origin")
    # A chunk that is not at its destination must leave, later than it came; no other may leave.
    passing = np.flatnonzero(names.seen_block != 0)
    leaves = _when(sent, names.got_item[passing])
    for bad, why in (
        (leaves == _NEVER, "is not forwarded to its destination"),
        (leaves <= names.message[passing], "is forwarded before it has arrived"),
    ):
        if bad.any():
            row = int(passing[np.argmax(bad)])
            _fail(f"all_to_all: the chunk of message {names.message[row]} (row {row}) {why}")
    passed = np.flatnonzero(names.origin != 0)
    came = _when(got, names.sent_item[passed])
    if (came == _NEVER).any():
        row = int(passed[np.argmax(came == _NEVER)])
        _fail(f"all_to_all: message {names.message[row]} (row {row}) sends a chunk it never got")


def _sorted_once(names: _Names, items: np.ndarray, what: str) -> np.ndarray:
    order = np.argsort(items, kind="stable")
    twice = np.flatnonzero(np.diff(items[order]) == 0)
    if len(twice):
        first, again = (int(names.message[order[twice[0] + k]]) for k in (0, 1))
        _fail(f"all_to_all: a chunk is {what} twice, in messages {first} and {again}")
    return np.stack([items[order], names.message[order]])


def _when(table: np.ndarray, items: np.ndarray) -> np.ndarray:
    if not table.shape[1]:
        return np.full(len(items), _NEVER)
    place = np.minimum(np.searchsorted(table[0], items), table.shape[1] - 1)
    return np.where(table[0, place] == items, table[1, place], _NEVER)


def _none(rows: np.ndarray, what: str, does: str) -> None:
    if len(rows):
        _fail(f"{what}: row {int(rows[0])} {does}, which it must not")


def _inverses(generators: np.ndarray, sought: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield every wanted rank x, with the inverse of the one element that takes rank 0 to x."""
    ranks = generators.shape[1]
    parent, by = np.full(ranks, -1), np.full(ranks, -1)
    parent[0], queue = 0, [0]
    for rank in queue:  # grows during iteration
        for index, perm in enumerate(generators):
            image = int(perm[rank])
            if parent[image] < 0:
                parent[image], by[image] = rank, index
                queue.append(image)
    if len(queue) < ranks:
        _fail(f"no generator leads from rank 0 to rank {int(np.argmax(parent < 0))}")
    _acts_freely(generators, parent, by, queue)
    needed = {0}
    for rank in sought:
        at = rank
        while at not in needed:
            needed.add(at)
            at = int(parent[at])
    if len(needed) * ranks > _MAX_ELEMENTS:
        _fail(
            f"rank 0 sends to {len(sought)} ranks by {len(needed)} elements of the group on "
            f"{ranks} ranks, needs at most {_MAX_ELEMENTS // ranks}"
        )
    elements = {0: np.arange(ranks, dtype=np.int32)}
    for rank in queue[1:]:  # each after the one before it
        if rank in needed:
            elements[rank] = generators[by[rank]][elements[int(parent[rank])]]
    inverse = np.empty(ranks, dtype=np.int64)
    for rank in sought:
        inverse[elements[rank]] = np.arange(ranks)
        yield rank, inverse


def _acts_freely(
    generators: np.ndarray, parent: np.ndarray, by: np.ndarray, order: list[int]
) -> None:
    """Check that only the identity fixes a rank."""
    ranks = generators.shape[1]
    if all(np.array_equal(p[q], q[p]) for p in generators for q in generators):
        return  # an element that fixes one rank and commutes with a transitive group fixes all
    if ranks * ranks > _MAX_TABLE:
        _fail(f"the generators do not commute and {ranks} ranks are too many to list the group")
    elements = np.empty((ranks, ranks), dtype=np.int32)
    elements[0] = np.arange(ranks)
    for rank in order[1:]:
        elements[rank] = generators[by[rank]][elements[parent[rank]]]
    for index, perm in enumerate(generators):
        for rank in range(ranks):
            if not np.array_equal(perm[elements[rank]], elements[perm[rank]]):
                _fail(
                    f"two elements of the group take rank 0 to rank {int(perm[rank])}: that which "
                    f"leads there and generators[{index}] after that to rank {rank}"
                )


def _fail(reason: str) -> None:
    raise VerificationError(f"orbit plan: {reason}")
