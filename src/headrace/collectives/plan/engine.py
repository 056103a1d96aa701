"""Interface of search engines; an engine is passed in, so that planning stays pure Python."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """The links that each chunk may use: those of chunk c are ``link[first[c]:first[c + 1]]``.

    Attributes
    ----------
    first : (chunks + 1,) int64.
    link : int32, indices into ``topology.links``.
    """

    first: np.ndarray
    link: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchProblem:
    """Deliveries of chunks over a topology, of which the fastest schedule is searched for.

    Attributes
    ----------
    chunk_mb : size of every chunk in MB.
    routes : links each chunk may use (say, a tree); None: all.
    symmetry : (elements, ranks) int32, a group of permutations of the ranks that are automorphisms
        of topology and deliveries; with every send, its images are sent too.
    backwards : rate and return schedules reversed: as sends that combine, on the transposed
        topology. A good multicast is often a bad reduction when reversed, as list scheduling never
        delays a send.
    before : sends of these chunks that go first, such as a reduce_scatter before an allgather. A
        chunk leaves its origin when they have all brought it there. `SearchResult.total_us` is that
        of both, `SearchResult.sends` the second part only; not with `backwards`.

    Raises
    ------
    ProgramError : ranks or chunks differ, or `before` does not fit.
    """

    topology: Topology
    deliveries: Deliveries
    chunk_mb: float
    routes: Routes | None = None
    symmetry: np.ndarray | None = None
    backwards: bool = False
    before: Sends | None = None

    def __post_init__(self) -> None:
        ranks, chunks = self.deliveries.ranks, self.deliveries.chunks
        if ranks != self.topology.ranks:
            raise ProgramError(
                f"deliveries has {ranks} ranks, the topology {self.topology.ranks}: needs the same "
                "number"
            )
        if not self.chunk_mb > 0:
            raise ProgramError(f"chunk_mb is {self.chunk_mb}, needs more than 0")
        if self.before is not None and (
            self.backwards or int(self.before.chunk.max(initial=-1)) >= chunks
        ):
            raise ProgramError(
                f"before is given, backwards is {self.backwards}, chunks are {chunks}: needs sends "
                "of these chunks, and a search forwards"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Search parameters. Equal ones give equal results: effort is counted, not timed.

    Attributes
    ----------
    seed : of the first restart; restart k uses its own stream.
    restarts : number of randomised constructions.
    batch_share : of the chunks that could go on a link now, at most this share of what the link
        is still expected to carry goes as one message; 0 sends every chunk by itself.
    limit_s : time limit, as a safety net; the result has whether it was reached.
    target_us : end the search at a schedule of this time or less (a proven bound, say).
    """

    seed: int = 0
    restarts: int = 1
    batch_share: float = 0.0
    limit_s: float = 60.0
    target_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult:
    """The best of the restarts.

    Attributes
    ----------
    sends : with `start_us` and `arrive_us`.
    total_us : arrival of the last message, under the full cost model.
    restarts : number of restarts done.
    struck : the time limit ended the search.
    """

    sends: Sends
    total_us: float
    restarts: int
    struck: bool = False


class SearchInterrupted(KeyboardInterrupt):
    """A KeyboardInterrupt during a search that has a result so far: `found`.

    Callers that cannot use a partial search let it pass, as any other interrupt.
    """

    def __init__(self, incumbent: SearchResult) -> None:
        super().__init__()
        self.found = incumbent


class SearchEngine(Protocol):
    """Randomised time-expanded matching over links and chunks."""

    def search(
        self, problem: SearchProblem, settings: SearchSettings = SearchSettings()
    ) -> SearchResult:
        """Return the best schedule found for a problem.

        Raises
        ------
        ProgramError : if a chunk cannot reach a target, or the symmetry does not fit.
        TopologyError : if sends that go before have one between ranks without a link.
        SearchInterrupted : if interrupted, with the best so far; a plain KeyboardInterrupt if
            there is none yet.
        """
        ...

    def retime(self, topology: Topology, sends: Sends, chunk_mb: float) -> SearchResult:
        """Return `sends` with the times that list scheduling in their order gives them.

        Messages are renumbered by their start. A message waits for all earlier ones that bring
        its chunks to its source, so sends that reduce are timed as well.

        Raises
        ------
        TopologyError : for a send between ranks without a link.
        """
        ...
