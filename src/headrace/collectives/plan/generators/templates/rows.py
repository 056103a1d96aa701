"""Rows of the templates: algorithms known by name, with the chunk counts to try of each."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.templates.two_level.fit import (
    cheapest_groups,
    fitted_masters,
    is_plain,
)
from headrace.collectives.plan.generators.templates.two_level.schedule import chunk_count, two_level
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.request import Generator, Request
from headrace.collectives.program import Schedule

MAX_TRANSFERS = 20_000
"""Above half as many transfers no finer cut is made: planning should take seconds, not minutes."""


def _tried(
    request: Request, make: Callable[[Demand], Schedule], chunk_counts: Iterable[int]
) -> Iterator[Schedule]:
    """Yield a schedule for each chunk count up to `max_chunks`; for the least always."""
    for index, chunks in enumerate(sorted(set(chunk_counts))):
        if index and chunks > request.max_chunks:
            return
        schedule = make(request.demand(chunks))
        yield schedule
        if len(schedule.transfers) > MAX_TRANSFERS // 2:
            return


def _ring(request: Request) -> Iterator[Schedule]:
    # The executor streams within a chunk: more chunks only help where a chunk is short.
    counts = {Collective.ALLREDUCE: (request.ranks,)}.get(request.collective, (1,))
    if request.collective in (Collective.BROADCAST, Collective.REDUCE):
        counts = (1, 4, 16)
    return _tried(request, partial(templates.ring, order=request.order), counts)


def _halving_doubling(request: Request) -> Iterator[Schedule]:
    power_of_two = 1 << (request.ranks.bit_length() - 1)
    counts = (2, power_of_two) if request.collective is Collective.ALLREDUCE else (1,)
    return _tried(request, partial(templates.halving_doubling, order=request.order), counts)


def _recursive_doubling(request: Request) -> Iterator[Schedule]:
    return _tried(request, partial(templates.recursive_doubling, order=request.order), (1,))


def _double_binary_tree(request: Request) -> Iterator[Schedule]:
    make = partial(templates.double_binary_tree, order=request.order)
    return _tried(request, make, (2, 8, 32))


def _direct(request: Request) -> Iterator[Schedule]:
    is_allreduce = request.collective is Collective.ALLREDUCE
    return _tried(request, templates.direct, (request.ranks if is_allreduce else 1,))


def _full_exchange(request: Request) -> Iterator[Schedule]:
    return _tried(request, templates.full_exchange, (1,))


def _hierarchical(request: Request) -> Iterator[Schedule]:
    few = request.collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER)
    counts = (1, 2, 4, 8) if few else _chunk_counts(request)
    return _tried(request, partial(templates.hierarchical, groups=_groups(request)), counts)


def _hierarchical_even(request: Request) -> Iterator[Schedule]:
    groups = _groups(request)
    if request.collective is not Collective.ALLREDUCE:
        raise ProgramError("only allreduce has global masters to spread")
    if len(groups) < 3 or len({len(group) for group in groups}) == 1:
        raise ProgramError("differs from hierarchical for three or more groups of unequal size")
    n = request.ranks
    make = partial(templates.hierarchical, groups=groups, spread="even")
    return _tried(request, make, (n, 4 * n, 16 * n))


def _two_level(request: Request) -> Iterator[Schedule]:
    """Masters by the bandwidth of ranks and groups, chunks by size; groups by cost if none."""
    if request.collective is not Collective.ALLREDUCE:
        raise ProgramError("only allreduce has global masters")
    topology, aims = request.topology, request.aims or (1 << 20,)
    if request.groups is None:
        groups = cheapest_groups(topology, aims[len(aims) // 2], request.method.model)
        sizes = aims
    else:
        groups = request.groups
        if is_plain(fitted_masters(topology, groups, request.ranks)):
            raise ProgramError("ranks and groups have equal rates: same as hierarchical")
        least = max(1, aims[0])
        sizes = [least << k for k in range((aims[-1] // least).bit_length())]
    return _tried(
        request,
        lambda demand: two_level(demand, fitted_masters(topology, groups, demand.slots)),
        (chunk_count(size, request.ranks) for size in sizes),
    )


def _exchange(request: Request) -> Iterator[Schedule]:
    # Long vectors are faster with global masters, which need no pass over scratch.
    counts = _chunk_counts(request)[:4]
    return _tried(request, partial(templates.exchange, groups=_groups(request)), counts)


def _chunk_counts(request: Request) -> tuple[int, ...]:
    n = request.ranks
    return (1, 2, n, 2 * n, 4 * n, 8 * n, 16 * n, 32 * n, 128 * n)


def _groups(request: Request) -> RankGroups:
    if request.groups is None:
        raise ProgramError("the topology has a single group")
    return request.groups


TEMPLATES: tuple[Generator, ...] = (
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
