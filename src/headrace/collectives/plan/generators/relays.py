"""All-to-all in fewer messages: blocks aggregated with others and forwarded by a relay.

An exchange of n ranks sends n (n - 1) messages, and where many share an uplink each costs its alpha
there. The block from rank s to rank d may be part of the message from s to r, which forwards it to
d (or of the message from r to d, once r has it): one message less on the uplink for one more
inside, where capacity is left. The two-level all-to-all of MPI libraries does so for whole groups,
and its first and last steps leave the uplink idle. Here it is done block by block, by local search
from the direct exchange, timed by list scheduling.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import SearchEngine, SearchResult
from headrace.collectives.plan.generators.limits import chunk_mb_of
from headrace.collectives.plan.generators.templates import direct
from headrace.collectives.plan.ir.chunks import realize, sends_of
from headrace.collectives.plan.ir.sends import Sends
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.topology import Topology

_TRIALS = {"quick": 40_000, "normal": 400_000, "thorough": 10_000_000}
"""Messages timed again, all changes together."""


class _Message(NamedTuple):
    src: int
    dst: int
    chunks: tuple[int, ...]

    def with_chunk(self, chunk: int) -> "_Message":
        return self._replace(chunks=(*self.chunks, chunk))


def relayed(
    topology: Topology,
    exchange: Schedule,
    chunk_mb: float,
    engine: SearchEngine,
    *,
    seed: int = 0,
    trials: int = 2000,
) -> SearchResult:
    """Return the sends of `exchange`, with blocks forwarded by relays where that is faster.

    Equal arguments give equal results, never slower than `exchange` itself.

    Parameters
    ----------
    exchange : sends every chunk directly to its single target, in a message of its own.
    trials : changes tried; each is kept unless it takes longer.

    Raises
    ------
    TopologyError : if a link is missing.
    """
    sends = sends_of(exchange)
    columns = zip(sends.src.tolist(), sends.dst.tolist(), sends.chunk.tolist(), strict=True)
    messages = [_Message(src, dst, (chunk,)) for src, dst, chunk in columns]
    best = engine.retime(topology, _sends(messages), chunk_mb)
    random = np.random.default_rng(seed)
    index = topology.link_index
    for _ in range(trials if len(messages) > 2 else 0):
        change = _moved if random.integers(3) == 0 else _rerouted
        changed = change(messages, random)
        if changed is None or any((each.src, each.dst) not in index for each in changed):
            continue
        found = engine.retime(topology, _sends(changed), chunk_mb)
        if found.total_us <= best.total_us:
            messages, best = changed, found
    return best


def _rerouted(messages: list[_Message], random: np.random.Generator) -> list[_Message] | None:
    """Merge a message of one chunk into another; None if that is impossible."""
    at = int(random.integers(len(messages)))
    src, dst, chunks = messages[at]
    if len(chunks) != 1 or sum(chunks[0] in each.chunks for each in messages) > 1:
        return None
    chunk, first = chunks[0], bool(random.integers(2))
    # Either the first hop is merged into a message from `src`, or the second into one to `dst`.
    along = [
        k
        for k, each in enumerate(messages)
        if (each.src == src) != (each.dst == dst) and (each.src == src) == first
    ]
    if not along:
        return None
    host = int(random.choice(along))
    changed = list(messages)
    changed[host] = messages[host].with_chunk(chunk)
    rest = (messages[host].dst, dst) if first else (src, messages[host].src)
    if random.integers(2):  # merge the other hop, too
        later = range(host + 1, len(messages)) if first else range(host)
        more = [k for k in later if messages[k][:2] == rest]
        if not more:
            return None
        other = int(random.choice(more))
        changed[other] = changed[other].with_chunk(chunk)
        del changed[at]
        return changed
    del changed[at]
    host -= at < host
    place = max(at, host + 1) if first else min(at, host)
    changed.insert(place, _Message(*rest, (chunk,)))
    return changed


def _moved(messages: list[_Message], random: np.random.Generator) -> list[_Message] | None:
    """Move one message in the order; None if a chunk would be forwarded before its arrival."""
    at, to = random.integers(len(messages), size=2).tolist()
    mine = messages[at]
    low, high = min(at, to), max(at, to)
    passed = (each for k, each in enumerate(messages[low : high + 1], low) if k != at)
    if any(not set(mine.chunks).isdisjoint(each.chunks) for each in passed):
        return None
    changed = list(messages)
    del changed[at]
    changed.insert(to, mine)
    return changed


def _sends(messages: Sequence[_Message]) -> Sends:
    rows = [
        (chunk, each.src, each.dst, number)
        for number, each in enumerate(messages)
        for chunk in each.chunks
    ]
    columns = np.array(rows, dtype=np.int32).reshape(-1, 4)
    return Sends.of(*columns[:, :3].T, message=columns[:, 3])


def relay_schedules(request: Request) -> Iterator[Schedule]:
    """All-to-all in fewer messages, some blocks forwarded by relays: `relays`."""
    method = request.method
    if request.collective is not Collective.ALL_TO_ALL:
        raise ProgramError("only for all_to_all")
    if method.engine is None:
        raise ProgramError("needs a search engine")
    demand = request.demand(method.chunks or 1)
    trials = _TRIALS[method.effort] // (request.ranks**2 * demand.chunks)
    if trials < request.ranks:
        raise ProgramError(f"{request.ranks} ranks are too many: fewer trials than ranks")
    exchange = direct(demand)
    for aim in request.aims:
        found = relayed(
            request.topology,
            exchange,
            chunk_mb_of(demand, aim),
            method.engine,
            seed=method.seed,
            trials=trials,
        )
        request.report(f"{found.total_us:.4g} us")
        yield realize(demand, found.sends)
