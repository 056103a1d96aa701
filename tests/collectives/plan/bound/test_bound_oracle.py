"""The bounds against exhaustive oracles: every cut, every schedule, of tiny instances."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.topology import Link, SharedCapacity, Topology

MB = 1_000_000


def network(n: int, rows: list[tuple[int, int, float, float]], *shared: SharedCapacity) -> Topology:
    return Topology(
        name="tiny",
        hosts=tuple(f"h{i}" for i in range(n)),
        rank_host=tuple(range(n)),
        links=tuple(Link(src=s, dst=d, alpha_us=a, beta_us_per_mb=b) for s, d, a, b in rows),
        shared=shared,
    )


@st.composite
def sparse_networks(draw: st.DrawFn) -> Topology:
    """A ring, so that everyone reaches everyone, and some more links; no shared capacities."""
    n = draw(st.integers(2, 5))
    pairs = {(i, (i + 1) % n) for i in range(n)}
    pairs |= draw(st.sets(st.sampled_from([(s, d) for s in range(n) for d in range(n) if s != d])))
    betas = st.sampled_from([10.0, 20.0, 25.0, 40.0, 70.0, 100.0, 1000.0])
    return network(n, [(s, d, 0.0, draw(betas)) for s, d in sorted(pairs)])


def cuts(n: int) -> Iterator[frozenset[int]]:
    for size in range(1, n):
        yield from map(frozenset, itertools.combinations(range(n), size))


def out_of(topology: Topology, inside: frozenset[int]) -> float:
    """Capacity out of a set of ranks, in MB/us."""
    return sum(
        1 / link.beta_us_per_mb
        for link in topology.links
        if link.src in inside and link.dst not in inside
    )


def flow_us(topology: Topology, collective: Collective, root: int = 0) -> float:
    demand = Demand(collective=collective, ranks=topology.ranks, root=root)
    return lower_bound(topology, demand, MB).terms[0].us


@settings(max_examples=40, deadline=None)
@given(topology=sparse_networks())
def test_flows_equal_the_worst_of_all_cuts(topology: Topology) -> None:
    n = topology.ranks
    everyone = frozenset(range(n))
    out = {inside: out_of(topology, inside) for inside in cuts(n)}
    root = n - 1

    def worst(cost_mb: Callable[[frozenset[int]], float]) -> float:
        """Largest over the cuts of what must leave, by the capacity out."""
        return max(cost_mb(inside) / out[inside] for inside in out)

    def behind(inside: frozenset[int]) -> int:
        return len(everyone - inside)

    # The formula: M / min(capacity out of S, capacity into S), over all cuts S.
    allreduce = max(1 / min(out[inside], out[everyone - inside]) for inside in out)
    assert flow_us(topology, Collective.ALLREDUCE) == pytest.approx(allreduce)
    assert flow_us(topology, Collective.BROADCAST, root) == pytest.approx(
        worst(lambda inside: root in inside)
    )
    assert flow_us(topology, Collective.REDUCE, root) == pytest.approx(
        worst(lambda inside: root not in inside)
    )
    assert flow_us(topology, Collective.ALLGATHER) == pytest.approx(
        worst(lambda inside: len(inside) / n)
    )
    assert flow_us(topology, Collective.REDUCE_SCATTER) == pytest.approx(
        worst(lambda inside: behind(inside) / n)
    )
    assert flow_us(topology, Collective.GATHER, root) == pytest.approx(
        worst(lambda inside: len(inside) / n if root not in inside else 0)
    )
    assert flow_us(topology, Collective.SCATTER, root) == pytest.approx(
        worst(lambda inside: behind(inside) / n if root in inside else 0)
    )
    # Flows of all pairs at once obey the cuts, and may be slower still.
    all_to_all = worst(lambda inside: len(inside) * behind(inside) / n)
    assert flow_us(topology, Collective.ALL_TO_ALL) >= all_to_all * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(topology=sparse_networks(), data=st.data())
def test_sharing_only_strengthens_the_bounds(topology: Topology, data: st.DataObject) -> None:
    links = data.draw(st.sets(st.integers(0, len(topology.links) - 1), min_size=1))
    beta = data.draw(st.sampled_from([5.0, 30.0, 200.0]))
    shared = SharedCapacity(name="shared", links=tuple(links), beta_us_per_mb=beta)
    tighter = Topology(
        name="shared",
        hosts=topology.hosts,
        rank_host=topology.rank_host,
        links=topology.links,
        shared=(shared,),
    )
    for collective in STANDARD:
        demand = Demand(collective=collective, ranks=topology.ranks)
        without = lower_bound(topology, demand, MB).total_us
        found = lower_bound(tighter, demand, MB).total_us
        assert found >= without * (1 - 1e-9)
        if beta <= min(link.beta_us_per_mb for link in topology.links) / len(topology.links):
            assert found == pytest.approx(without)  # a capacity no set of links can fill


# --- Every schedule of one chunk --------------------------------------------------------------
#
# The simple model: a send moves a rank's whole value, as it is when the send starts, occupies its
# link (and what the link shares, for the same time at its own rate) and arrives alpha later. The
# receiver replaces or combines. A state is, per rank, the set of contributions it holds.


def best_us(topology: Topology, demand: Demand, most_sends: int) -> float:
    """The fastest of all sequences of at most `most_sends` useful sends, by exhaustion.

    The sequence is the order in which resources are granted; each send starts as early as its
    source's value and its resources allow.
    """
    n = demand.ranks
    gather = demand.collective is Collective.ALLGATHER
    size_mb = 1.0 / n if gather else 1.0
    resources = [[i] for i in range(len(topology.links))]
    betas = [link.beta_us_per_mb for link in topology.links]
    for shared in topology.shared:
        for link in shared.links:
            resources[link].append(len(betas))
        betas.append(shared.beta_us_per_mb)
    # Per rank: item -> (contributions, when). An allgather has n items, the others one.
    items = n if gather else 1
    start: list[list[tuple[int, float]]] = []
    for rank in range(n):
        if gather:
            start.append([(1 << rank if item == rank else 0, 0.0) for item in range(n)])
        elif demand.collective is Collective.BROADCAST:
            start.append([(1 if rank == demand.root else 0, 0.0)])
        else:
            start.append([(1 << rank, 0.0)])
    wanted = [
        1 << item if gather else 1 if demand.collective is Collective.BROADCAST else (1 << n) - 1
        for item in range(items)
    ]
    best = math.inf

    def search(
        values: list[list[tuple[int, float]]], free: list[float], left: int, latest: float
    ) -> None:
        nonlocal best
        if latest >= best:
            return
        done = all(values[r][i][0] == wanted[i] for r in range(n) for i in range(items))
        if done:
            best = latest
            return
        if left == 0:
            return
        for index, link in enumerate(topology.links):
            for item in range(items):
                mine, since = values[link.src][item]
                theirs, until = values[link.dst][item]
                if not mine or mine | theirs == theirs:
                    continue
                begin = max([since, *(free[r] for r in resources[index])])
                moved = max(betas[r] for r in resources[index]) * size_mb
                arrival = begin + moved + link.alpha_us
                now_free = list(free)
                for r in resources[index]:
                    now_free[r] = begin + betas[r] * size_mb
                results = [(mine, arrival)]  # replace (fresh scratch is free: time is arrival)
                if not mine & theirs and theirs:
                    results.append((mine | theirs, max(arrival, until)))
                for result in results:
                    after = [list(row) for row in values]
                    after[link.dst][item] = result
                    search(after, now_free, left - 1, max(latest, result[1]))

    search(start, [0.0] * len(betas), most_sends, 0.0)
    return best


COSTS = [(10.0, 100.0), (0.0, 40.0), (150.0, 20.0)]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("there", COSTS)
@pytest.mark.parametrize("back", COSTS)
@pytest.mark.parametrize("shared_beta", [None, 60.0])
@pytest.mark.parametrize(
    "collective", [Collective.ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST]
)
def test_no_schedule_of_two_ranks_beats_the_bound(
    there: tuple[float, float],
    back: tuple[float, float],
    shared_beta: float | None,
    collective: Collective,
) -> None:
    shared = (
        [SharedCapacity(name="half duplex", links=(0, 1), beta_us_per_mb=shared_beta)]
        if shared_beta
        else []
    )
    topology = network(2, [(0, 1, *there), (1, 0, *back)], *shared)
    demand = Demand(collective=collective, ranks=2)
    best = best_us(topology, demand, 3)
    least = lower_bound(topology, demand, MB).total_us
    assert least <= best * (1 + 1e-9)
    if collective is not Collective.ALLREDUCE and not shared:
        assert least == pytest.approx(best)  # two ranks leave nothing to gain


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_no_schedule_of_three_ranks_beats_the_bound(data: st.DataObject) -> None:
    pairs = [(s, d) for s in range(3) for d in range(3) if s != d]
    costs = st.sampled_from(COSTS)
    rows = [(s, d, *data.draw(costs)) for s, d in pairs]
    groups = st.sets(st.integers(0, 5), min_size=2)
    shared = [
        SharedCapacity(name=f"c{i}", links=tuple(data.draw(groups)), beta_us_per_mb=60.0)
        for i in range(data.draw(st.integers(0, 2)))
    ]
    topology = network(3, rows, *shared)
    for collective, sends in ((Collective.ALLREDUCE, 5), (Collective.BROADCAST, 3)):
        demand = Demand(collective=collective, ranks=3)
        best = best_us(topology, demand, sends)
        assert math.isfinite(best)
        assert lower_bound(topology, demand, MB).total_us <= best * (1 + 1e-9)
