"""Every template with the arguments that tests run it with."""

from collections.abc import Callable
from functools import partial

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators import templates
from headrace.collectives.program import Schedule

Variant = Callable[[Demand], Schedule]

SERVES = {
    "ring": "allreduce reduce broadcast allgather reduce_scatter",
    "halving_doubling": "allreduce allgather reduce_scatter",
    "recursive_doubling": "allreduce",
    "double_binary_tree": "allreduce reduce broadcast",
    "direct": "allreduce reduce broadcast allgather gather reduce_scatter scatter all_to_all",
    "full_exchange": "allreduce",
    "hierarchical": "allreduce reduce broadcast allgather reduce_scatter",
    "exchange": "allreduce",
}


def groupings(ranks: int) -> list[tuple[tuple[int, ...], ...]]:
    """A few ways to group the ranks: even, uneven, interleaved, one, singletons."""
    everyone = tuple(range(ranks))
    ways = {
        (everyone,),
        tuple((rank,) for rank in everyone),
        tuple(filter(None, (everyone[0::2], everyone[1::2]))),
        tuple(filter(None, (everyone[:1], everyone[1:4], everyone[4:]))),
    }
    return sorted(ways)


def variants(name: str, ranks: int) -> list[Variant]:
    """The variants of one template that tests cover."""
    make = getattr(templates, name)
    if name in ("direct", "full_exchange"):
        return [make]
    if name in ("hierarchical", "exchange"):
        variants = [partial(make, groups=groups) for groups in groupings(ranks)]
        return [*variants, *(partial(v, lag=lag) for v in variants[-1:] for lag in (0, 1, 7))]
    backwards = tuple(reversed(range(ranks)))
    return [make, partial(make, order=(*backwards[1::2], *backwards[0::2]))]


def serves(name: str, demand: Demand) -> bool:
    """Return whether template `name` is meant for `demand`."""
    power_of_two = demand.ranks & (demand.ranks - 1) == 0
    if name == "halving_doubling" and demand.collective is not Collective.ALLREDUCE:
        return power_of_two and demand.collective in SERVES[name].split()
    return demand.collective in SERVES[name].split()
