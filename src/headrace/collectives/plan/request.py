"""Generators of schedules: the table of templates, and what every generator is given.

A generator is a function from a `Setting` to schedules; the number of chunks is its own choice.
Templates are here, in `GENERATORS`; generators that search are in `search_generators`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from math import sqrt
from typing import Literal, NamedTuple

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import Bound, lower_bound
from headrace.collectives.plan.cost.model import EXECUTOR, CostModel
from headrace.collectives.plan.engine import SearchEngine
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.templates.transfers import RankGroups, check_groups
from headrace.collectives.plan.generators.templates.two_level import (
    cheapest_groups,
    chunk_count,
    fitted_masters,
    two_level,
)
from headrace.collectives.plan.generators.templates.two_level.fit import is_plain
from headrace.collectives.program import Program, Schedule
from headrace.errors import ProgramError
from headrace.topology import Topology

MAX_TRANSFERS = 20_000
"""Above half as many transfers no finer cut is made: planning should take seconds, not minutes."""

_BETA_JUMP = 1.5
"""Ratio of adjacent betas from which the slower links are classified as between groups."""


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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Input of a generator.

    Attributes
    ----------
    groups : ranks by locality, or None if the topology shows none.
    max_chunks : most chunks a block; more would be smaller than a message's overhead justifies.
    aims : sizes in bytes that search generators plan for; templates ignore them.
    method : search limits and cost model.
    given : the demand, where collective, ranks and root do not define it: a custom one, or an
        all_to_all_v. Its chunks are those of one block.
    report : called with a line on the progress of the search: incumbent, bound, gap.
    best_us : predicted time of the best candidate so far at a size in bytes, for pruning; infinite
        where there is none, and where the search may take as long as it helps.
    """

    topology: Topology
    collective: Collective
    root: int = 0
    groups: RankGroups | None = None
    max_chunks: int = 512
    aims: tuple[int, ...] = ()
    method: Method = METHOD
    given: Demand | None = None
    report: Callable[[str], None] = field(default=lambda _text: None, compare=False)
    best_us: Callable[[int], float] = field(default=lambda _bytes: float("inf"), compare=False)

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        *,
        groups: RankGroups | None,
        root: int,
        max_chunks: int = 512,
        aims: tuple[int, ...] = (),
        method: Method = METHOD,
        given: Demand | None = None,
        report: Callable[[str], None] = lambda _text: None,
        best_us: Callable[[int], float] = lambda _bytes: float("inf"),
    ) -> "Setting":
        """Check `groups`, or derive them from the topology; raises ProgramError."""
        if given is not None and given.ranks != topology.ranks:
            raise ProgramError(
                f"the demand has {given.ranks} ranks, topology '{topology.name}' has "
                f"{topology.ranks}; needs as many"
            )
        setting = cls(
            topology=topology,
            collective=Collective(collective),
            root=root,
            groups=grouping(topology, groups),
            max_chunks=max_chunks,
            aims=aims,
            method=method,
            given=given,
            report=report,
            best_us=best_us,
        )
        for found in (groups, setting.groups):
            if found:
                check_groups(setting.ranks, found)
        return setting

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
    schedules: Callable[[Setting], Iterable[Schedule]]
    min_gap: float | None = None


def _tried(
    setting: Setting, make: Callable[[Demand], Schedule], chunk_counts: Iterable[int]
) -> Iterator[Schedule]:
    """Yield a schedule for each chunk count up to `max_chunks`; for the least always."""
    for index, chunks in enumerate(sorted(set(chunk_counts))):
        if index and chunks > setting.max_chunks:
            return
        schedule = make(setting.demand(chunks))
        yield schedule
        if len(schedule.transfers) > MAX_TRANSFERS // 2:
            return


def _ring(setting: Setting) -> Iterator[Schedule]:
    # The executor streams within a chunk: more chunks only help where a chunk is short.
    counts = {Collective.ALLREDUCE: (setting.ranks,)}.get(setting.collective, (1,))
    if setting.collective in (Collective.BROADCAST, Collective.REDUCE):
        counts = (1, 4, 16)
    return _tried(setting, partial(templates.ring, order=setting.order), counts)


def _halving_doubling(setting: Setting) -> Iterator[Schedule]:
    power_of_two = 1 << (setting.ranks.bit_length() - 1)
    counts = (2, power_of_two) if setting.collective is Collective.ALLREDUCE else (1,)
    return _tried(setting, partial(templates.halving_doubling, order=setting.order), counts)


def _recursive_doubling(setting: Setting) -> Iterator[Schedule]:
    return _tried(setting, partial(templates.recursive_doubling, order=setting.order), (1,))


def _double_binary_tree(setting: Setting) -> Iterator[Schedule]:
    make = partial(templates.double_binary_tree, order=setting.order)
    return _tried(setting, make, (2, 8, 32))


def _direct(setting: Setting) -> Iterator[Schedule]:
    whole = setting.collective is Collective.ALLREDUCE
    return _tried(setting, templates.direct, (setting.ranks if whole else 1,))


def _full_exchange(setting: Setting) -> Iterator[Schedule]:
    return _tried(setting, templates.full_exchange, (1,))


def _hierarchical(setting: Setting) -> Iterator[Schedule]:
    few = setting.collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER)
    counts = (1, 2, 4, 8) if few else _chunk_counts(setting)
    return _tried(setting, partial(templates.hierarchical, groups=_groups(setting)), counts)


def _hierarchical_even(setting: Setting) -> Iterator[Schedule]:
    groups = _groups(setting)
    if setting.collective is not Collective.ALLREDUCE:
        raise ProgramError("only allreduce has global masters to spread")
    if len(groups) < 3 or len({len(group) for group in groups}) == 1:
        raise ProgramError("differs from hierarchical for three or more groups of unequal size")
    n = setting.ranks
    make = partial(templates.hierarchical, groups=groups, spread="even")
    return _tried(setting, make, (n, 4 * n, 16 * n))


def _two_level(setting: Setting) -> Iterator[Schedule]:
    """Masters by the bandwidth of ranks and groups, chunks by size; groups by cost if none."""
    if setting.collective is not Collective.ALLREDUCE:
        raise ProgramError("only allreduce has global masters")
    topology, aims = setting.topology, setting.aims or (1 << 20,)
    if setting.groups is None:
        groups = cheapest_groups(topology, aims[len(aims) // 2], setting.method.model)
        sizes = aims
    else:
        groups = setting.groups
        if is_plain(fitted_masters(topology, groups, setting.ranks)):
            raise ProgramError("ranks and groups have equal rates: same as hierarchical")
        least = max(1, aims[0])
        sizes = [least << k for k in range((aims[-1] // least).bit_length())]
    return _tried(
        setting,
        lambda demand: two_level(demand, fitted_masters(topology, groups, demand.slots)),
        (chunk_count(size, setting.ranks) for size in sizes),
    )


def _exchange(setting: Setting) -> Iterator[Schedule]:
    # Long vectors are faster with global masters, which need no pass over scratch.
    counts = _chunk_counts(setting)[:4]
    return _tried(setting, partial(templates.exchange, groups=_groups(setting)), counts)


def _chunk_counts(setting: Setting) -> tuple[int, ...]:
    n = setting.ranks
    return (1, 2, n, 2 * n, 4 * n, 8 * n, 16 * n, 32 * n, 128 * n)


def _groups(setting: Setting) -> RankGroups:
    if setting.groups is None:
        raise ProgramError("the topology has a single group")
    return setting.groups


GENERATORS: tuple[Generator, ...] = (
    Generator("direct", _direct),
    Generator("full_exchange", _full_exchange),
    Generator("recursive_doubling", _recursive_doubling),
    Generator("halving_doubling", _halving_doubling),
    Generator("ring", _ring),
    Generator("double_binary_tree", _double_binary_tree),
    Generator("hierarchical", _hierarchical),
    Generator("hierarchical_even", _hierarchical_even),
    Generator("two_level", _two_level),
    Generator("exchange", _exchange),
)
"""The templates: algorithms known by name, on any topology."""


def grouping(topology: Topology, groups: RankGroups | None) -> RankGroups | None:
    """Return `groups`, or `locality` of the topology where there is only one group.

    One group of all ranks (as measured in a single rack) does not show ranks that share a host.
    """
    return groups if groups and len(groups) > 1 else locality(topology)


def locality(topology: Topology) -> RankGroups | None:
    """Return the groups that follow from `topology` alone, or None.

    Ranks that share a host; else ranks joined by links that are clearly faster than the rest;
    else ranks behind one shared capacity to all others (an uplink).
    """
    for found in (_by_host(topology), _by_beta(topology), _by_uplink(topology)):
        if 1 < len(found) < topology.ranks:
            return tuple(sorted(tuple(sorted(group)) for group in found))
    return None


def _by_host(topology: Topology) -> list[set[int]]:
    hosts: dict[int, set[int]] = {}
    for rank, host in enumerate(topology.rank_host):
        hosts.setdefault(host, set()).add(rank)
    return list(hosts.values())


def _by_uplink(topology: Topology) -> list[set[int]]:
    """Ranks whose every link to or from all others is in one shared capacity."""
    sides: list[set[int]] = []
    for shared in topology.shared:
        sources = {topology.links[link].src for link in shared.links}
        targets = {topology.links[link].dst for link in shared.links}
        cuts = len(sources) * len(targets) == len(shared.links) and not sources & targets
        if cuts and len(sources | targets) == topology.ranks:
            sides += [sources, targets] if min(len(sources), len(targets)) > 1 else []
    groups: list[set[int]] = []
    for side in sorted(sides, key=len):  # the larger ones may be several racks together
        if not any(side & group for group in groups):
            groups.append(side)
    alone = set(range(topology.ranks)).difference(*groups)
    return [*groups, *({rank} for rank in alone)]


def _by_beta(topology: Topology) -> list[set[int]]:
    betas = sorted({link.beta_us_per_mb for link in topology.links})
    jumps = [(high / low, sqrt(high * low)) for low, high in pairwise(betas)]
    if not jumps or max(jumps)[0] < _BETA_JUMP:
        return []
    limit = max(jumps)[1]
    group_of = {rank: {rank} for rank in range(topology.ranks)}
    for link in topology.links:
        if link.beta_us_per_mb < limit and group_of[link.src] is not group_of[link.dst]:
            joined = group_of[link.src] | group_of[link.dst]
            group_of.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in group_of.values()}.values())
