"""Input and row of every generator of schedules: one `Request`, from planning's entrance on.

A generator is a function from a `Request` to schedules; the number of chunks is its own choice.
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound import Bound, lower_bound
from headrace.collectives.plan.cost.model import EXECUTOR, CostModel
from headrace.collectives.plan.engine import SearchEngine
from headrace.collectives.plan.locality import RankGroups, check_groups, grouping
from headrace.collectives.program import Program, Schedule
from headrace.topology import Topology

Effort = Literal["quick", "normal", "thorough"]
"""Search effort: well under a second, seconds, or as long as it helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Planning method; an equal method and seed give equal plans.

    Attributes
    ----------
    model : cost model of the predictions.
    engine : the search engine; None: generators that need one raise ProgramError.
    seed : of everything random.
    effort : limits of the search, in counted work.
    chunks : chunks a block; None: every generator chooses its own.
    forbidden : returns why a program must not be chosen, or ''; None: all may.
    limit_s : processor time of one generator, a safety net behind the limits in counted work; if
        it is reached, equal arguments may give another plan. None: by effort, sizes and ranks.
    """

    model: CostModel = EXECUTOR
    engine: SearchEngine | None = None
    seed: int = 0
    effort: Effort = "normal"
    chunks: int | None = None
    forbidden: Callable[[Program], str] | None = None
    limit_s: float | None = None


METHOD = Method()
"""The default."""


@dataclass(frozen=True)
class Request:
    """Input of planning and of every generator; checked on construction.

    Attributes
    ----------
    groups : ranks by locality; None or a single group: `locality` of the topology, if it shows any.
    max_chunks : most chunks a block; more would be smaller than a message's overhead justifies.
    aims : sizes in bytes that search generators plan for; templates ignore them.
    method : search limits and cost model.
    given : the demand, where collective, ranks and root do not define it: a custom one, or an
        all_to_all_v. Its chunks are those of one block.
    report : called with a line on the progress of the search: incumbent, bound, gap.
    best_us : predicted time of the best candidate so far at a size in bytes, for pruning; infinite
        where there is none, and where the search may take as long as it helps.

    Raises
    ------
    ProgramError : if the groups or the ranks of `given` are not those of the topology.
    """

    topology: Topology
    collective: Collective
    _: KW_ONLY
    root: int = 0
    groups: RankGroups | None = None
    max_chunks: int = 512
    aims: tuple[int, ...] = ()
    method: Method = METHOD
    given: Demand | None = None
    report: Callable[[str], None] = field(default=lambda _text: None, compare=False)
    best_us: Callable[[int], float] = field(default=lambda _bytes: float("inf"), compare=False)

    def __post_init__(self) -> None:
        topology, demand = self.topology, self.given
        if demand is not None and demand.ranks != topology.ranks:
            raise ProgramError(
                f"the demand has {demand.ranks} ranks, topology '{topology.name}' has "
                f"{topology.ranks}; needs as many"
            )
        object.__setattr__(self, "collective", Collective(self.collective))
        for groups in (self.groups, grouping(topology, self.groups)):
            if groups:
                check_groups(topology.ranks, groups)
            object.__setattr__(self, "groups", groups)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.topology.ranks

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All ranks, those of a group next to each other."""
        if self.groups is None:
            return tuple(range(self.ranks))
        return tuple(rank for group in self.groups for rank in group)

    def bound(self, demand: Demand, total_bytes: int) -> Bound:
        """Return the lower bound on the time of all plans.

        A given number of chunks excludes finer cuts, unless the cost model streams chunks.
        """
        if self.method.chunks is None or self.method.model.streaming:
            return lower_bound(self.topology, demand, total_bytes)
        from headrace.collectives.plan.bound.unsplit import unsplit_bound  # loads SciPy

        return unsplit_bound(self.topology, demand, total_bytes)

    def demand(self, chunks: int) -> Demand:
        """Return the demand with `chunks` chunks a block."""
        if self.given is not None:
            return replace(self.given, chunks=self.given.chunks * chunks)
        return Demand(collective=self.collective, ranks=self.ranks, chunks=chunks, root=self.root)


class Generator(NamedTuple):
    """A row of the portfolio. `schedules` raises ProgramError if not applicable.

    Search generators are skipped once the optimality gap of the best candidate is below `min_gap`
    (0.02: 2%), unless the effort is thorough. Templates (None) are never skipped.
    """

    name: str
    schedules: Callable[[Request], Iterable[Schedule]]
    min_gap: float | None = None
