"""The native search engine as a `plan.engine.SearchEngine`."""

from functools import lru_cache

import numpy as np

from headrace import _native
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import (
    Routes,
    SearchInterrupted,
    SearchProblem,
    SearchResult,
    SearchSettings,
)
from headrace.collectives.plan.ir.chunks import Sends
from headrace.collectives.plan.ir.sends import with_arrivals
from headrace.errors import TopologyError
from headrace.topology import Topology, transposed

_NO_ROWS = np.zeros(1, dtype=np.int64)
_NONE = np.empty(0, dtype=np.int32)
_EVERY_ROUTE = Routes(first=_NO_ROWS, link=_NONE)


class NativeSearch:
    """Randomised time-expanded matching in the native core."""

    def search(
        self,
        problem: SearchProblem,
        settings: SearchSettings = SearchSettings(),  # noqa: B008 - frozen
    ) -> SearchResult:
        """Return the best schedule found; see `SearchEngine.search`.

        Raises
        ------
        ProgramError : if a chunk cannot reach a target, or the symmetry does not fit.
        TopologyError : if sends that go before have one between ranks without a link.
        SearchInterrupted : if interrupted, with the best so far; a plain KeyboardInterrupt if
            nothing was found yet.
        """
        topology, deliveries, before = problem.topology, problem.deliveries, problem.before
        routes = problem.routes or _EVERY_ROUTE
        first = (_NONE, _NO_ROWS) if before is None else _messages(topology, before)
        try:
            outcome = _native.search(
                _network(topology),
                origin=_int32(deliveries.origin),
                target=np.ascontiguousarray(deliveries.targets, dtype=np.uint8).reshape(-1),
                chunk_mb=problem.chunk_mb,
                routes_first=np.ascontiguousarray(routes.first, dtype=np.int64),
                routes_link=_int32(routes.link),
                symmetry=_NONE
                if problem.symmetry is None
                else _int32(problem.symmetry).reshape(-1),
                seed=settings.seed,
                restarts=settings.restarts,
                batch_share=settings.batch_share,
                limit_s=settings.limit_s,
                target_us=settings.target_us,
                backwards=problem.backwards,
                prelude_link=first[0],
                prelude_first=first[1],
                prelude_chunk=_NONE if before is None else _int32(before.chunk),
                look=_look,
            )
        except _native.SearchError as error:
            raise ProgramError(
                f"search on topology '{topology.name}': {error}; add links, or leave routes or "
                "symmetry out"
            ) from error
        if outcome.interrupted and not outcome.history:
            raise KeyboardInterrupt
        result = _result(topology, outcome, problem.chunk_mb, backwards=problem.backwards)
        if outcome.interrupted:
            raise SearchInterrupted(result)
        return result

    def retime(self, topology: Topology, sends: Sends, chunk_mb: float) -> SearchResult:
        """Return `sends` with the times of list scheduling; see `SearchEngine.retime`."""
        link, first = _messages(topology, sends)
        chunks = int(sends.chunk.max(initial=-1)) + 1
        start, total = _native.replay(
            _network(topology),
            chunks=chunks,
            chunk_mb=chunk_mb,
            link=link,
            first=first,
            chunk=_int32(sends.chunk),
        )
        order = np.argsort(start, kind="stable")
        sizes = np.diff(first)[order]
        rows = np.repeat(first[order] - np.append(0, np.cumsum(sizes)[:-1]), sizes)
        rows += np.arange(len(rows))
        timed = Sends.of(
            sends.chunk[rows],
            sends.src[rows],
            sends.dst[rows],
            reduce=sends.reduce[rows],
            message=np.repeat(np.arange(len(order)), sizes),
            start_us=np.repeat(start[order], sizes),
        )
        timed = with_arrivals(topology, timed, chunk_mb)
        return SearchResult(sends=timed, total_us=total, restarts=0)


def _result(
    topology: Topology, outcome: _native.Outcome, chunk_mb: float, *, backwards: bool
) -> SearchResult:
    there = transposed(topology) if backwards else topology
    columns = there.columns
    sizes = np.diff(outcome.first)
    rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    link = outcome.link[rows]
    sends = Sends.of(
        outcome.chunk,
        columns.src[link],
        columns.dst[link],
        reduce=backwards,
        message=rows,
        start_us=outcome.start_us[rows],
    )
    return SearchResult(
        sends=with_arrivals(there, sends, chunk_mb),
        total_us=outcome.total_us,
        restarts=outcome.restarts,
        struck=outcome.struck,
    )


def _look() -> None:
    """Do nothing; exceptions from other threads (PyThreadState_SetAsyncExc) are raised here."""


def _messages(topology: Topology, sends: Sends) -> tuple[np.ndarray, np.ndarray]:
    """Return the link of every message, and its first row; rows of a message are consecutive."""
    index = topology.link_index
    begins = np.flatnonzero(np.diff(sends.message, prepend=-1))
    ends = zip(sends.src[begins].tolist(), sends.dst[begins].tolist(), strict=True)
    try:
        link = np.array([index[pair] for pair in ends], dtype=np.int32)
    except KeyError as error:
        raise TopologyError(
            f"topology '{topology.name}' has no link {error}, which the sends use"
        ) from error
    return link, np.append(begins, len(sends.chunk)).astype(np.int64)


def _int32(column: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(column, dtype=np.int32)


@lru_cache(maxsize=16)
def _network(topology: Topology) -> _native.Network:
    shared, columns = topology.shared, topology.columns
    return _native.Network(
        ranks=topology.ranks,
        src=_int32(columns.src),
        dst=_int32(columns.dst),
        alpha=columns.alpha_us,
        beta=columns.beta_us_per_mb,
        shared_first=np.cumsum([0, *(len(capacity.links) for capacity in shared)], dtype=np.int64),
        shared_link=np.array(
            [link for capacity in shared for link in capacity.links], dtype=np.int32
        ),
        shared_beta=np.array([capacity.beta_us_per_mb for capacity in shared], dtype=float),
        group=_groups(topology),
    )


def _groups(topology: Topology) -> np.ndarray:
    """Return the group of every rank: ranks of one host, or behind one shared ingress."""
    hosts = np.array(topology.rank_host, dtype=np.int32)
    if len(set(topology.rank_host)) < topology.ranks:
        return np.unique(hosts, return_inverse=True)[1].astype(np.int32)
    group = np.arange(topology.ranks, dtype=np.int32)
    for capacity in topology.shared:
        sources = {topology.links[link].src for link in capacity.links}
        behind = {topology.links[link].dst for link in capacity.links}
        if len(behind) > 1 and not sources & behind:
            group[sorted(behind)] = min(behind)
    return np.unique(group, return_inverse=True)[1].astype(np.int32)
