"""A plan book's predictions for a job's allreduces, to compare with measurements."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.portfolio import rescore
from headrace.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceForecast:
    """One allreduce: the generator of its plan, its simulated time, and the lower bound."""

    total_bytes: int
    generator: str
    predicted_us: float
    bound_us: float

    @property
    def gap(self) -> float:
        """Optimality gap of the prediction: 0.05 is 5% above the bound."""
        return self.predicted_us / self.bound_us - 1 if self.bound_us else 0.0


def forecast(book: PlanBook, sizes: Sequence[int]) -> list[AllreduceForecast]:
    """Return the forecast of an allreduce of every size in bytes; `book` has to have plans."""
    return [_forecast(book, total_bytes) for total_bytes in sizes]


def _forecast(book: PlanBook, total_bytes: int) -> AllreduceForecast:
    plan = book.choose(Collective.ALLREDUCE, total_bytes)
    assert plan is not None, "the demo plans allreduces at every size"
    # a plan was scored at a size of its range, this is another
    scored = rescore(plan, book.topology, total_bytes)
    return AllreduceForecast(
        total_bytes=total_bytes,
        generator=scored.generator,
        predicted_us=scored.predicted_us,
        bound_us=scored.bound.total_us,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RingForecast:
    """Predicted times (us) of allreduces by rings, as Gloo runs them: in the order of the ranks.

    Attributes
    ----------
    order_us : in the order that the job has.
    best_us, worst_us : in the orders that suit a ring best and least.
    """

    order_us: float
    best_us: float
    worst_us: float


def forecast_rings(topology: Topology, sizes: Sequence[int]) -> RingForecast:
    """Return the predicted times of allreduces of these sizes (bytes), one after another.

    Of more than `_MAX_ENUMERATED` ranks the best and the worst order are those of a sample.
    """
    ranks = range(topology.ranks)
    if topology.ranks <= _MAX_ENUMERATED:
        orders = [(0, *others) for others in permutations(ranks[1:])]
    else:
        drawn = random.Random(0)
        orders = [tuple(drawn.sample(ranks, topology.ranks)) for _ in range(_SAMPLED_ORDERS)]
    times_us = [_ring_us(topology, order, sizes) for order in (tuple(ranks), *orders)]
    return RingForecast(order_us=times_us[0], best_us=min(times_us), worst_us=max(times_us))


_MAX_ENUMERATED = 7
_SAMPLED_ORDERS = 500


def _ring_us(topology: Topology, order: Sequence[int], sizes: Sequence[int]) -> float:
    """Return the time of rings: 2 (N - 1) rounds, in each of which every rank sends 1/N.

    A round lasts as long as its most loaded link or shared capacity carries its messages.
    """
    links = {
        topology.link_index[src, dst]
        for src, dst in zip(order, [*order[1:], order[0]], strict=True)
    }
    alpha_us = max(topology.links[link].alpha_us for link in links)
    us_per_mb = max(
        *(topology.links[link].beta_us_per_mb for link in links),
        *(
            shared.beta_us_per_mb * len(links.intersection(shared.links))
            for shared in topology.shared
        ),
        0.0,
    )
    rounds = 2 * (len(order) - 1)
    megabytes = sum(sizes) / len(order) / 1e6
    return rounds * (len(sizes) * alpha_us + us_per_mb * megabytes)
