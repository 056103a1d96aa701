import numpy as np
import pytest

from headrace.collectives.measure.racks.fluid import Rates, Rounds, predict, seen
from tests.collectives.measure.network import MBIT, Network, shuffled_racks


def one_round(hosts: int, flows: dict[tuple[int, int], float], *, fair: bool = False) -> Rounds:
    """Flows (src, dst) -> bytes, all at once."""
    size, dst = np.zeros((1, hosts)), np.full(hosts, -1)
    for (src, to), sent in flows.items():
        size[0, src], dst[src] = sent, to
    dst[dst < 0] = np.setdiff1d(np.arange(hosts), dst)
    return Rounds(
        size=size,
        dst=dst[None],
        src=np.argsort(dst)[None],
        took_us=np.where(size > 0, 1.0, np.nan),
        fair=fair,
    )


def rates(
    hosts: int,
    *,
    host: float = 1.0,
    uplink: float = np.inf,
    far: float = np.inf,
    core: float = np.inf,
) -> Rates:
    return Rates(
        host=np.full((1, hosts), host),
        uplink=np.full((1, hosts), uplink),
        far=np.array([far]),
        core=np.array([core]),
    )


def ends(rounds: Rounds, labels: list[int], rate: Rates) -> list[float]:
    return predict(rounds, np.array([labels]), rate)[0, 0].tolist()


@pytest.mark.parametrize("fair", [False, True])
def test_flows_that_meet_nowhere_have_the_rate_of_their_hosts(fair: bool) -> None:
    rounds = one_round(4, {(0, 1): 100.0, (2, 3): 300.0}, fair=fair)
    slow = rates(4)
    slow.host[0, 3] = 0.5
    assert ends(rounds, [0, 0, 1, 1], slow) == pytest.approx([100, 0, 600, 0])


@pytest.mark.parametrize("fair", [False, True])
def test_equal_flows_over_an_uplink_have_equal_parts_and_what_others_leave(fair: bool) -> None:
    # three leave: a third each until the short one is over, then half each
    rounds = one_round(6, {(0, 3): 100.0, (1, 4): 200.0, (2, 5): 200.0}, fair=fair)
    took = ends(rounds, [0, 0, 0, 1, 2, 3], rates(6, uplink=1.0))
    assert took == pytest.approx([300, 500, 500, 0, 0, 0], rel=0.02)


def test_a_flow_over_two_full_uplinks_has_half_of_what_others_have() -> None:
    # 0 and 1 leave a rack, 1 and 4 enter another: proportional fairness gives 2/3, 1/3, 2/3
    flows = {(0, 5): 200.0, (1, 2): 100.0, (4, 3): 200.0}
    took = ends(one_round(6, flows), [0, 0, 1, 1, 2, 3], rates(6, uplink=1.0))
    assert took == pytest.approx([300, 300, 0, 0, 300, 0], rel=0.03)
    equal = dict.fromkeys(flows, 100.0)
    took = ends(one_round(6, equal, fair=True), [0, 0, 1, 1, 2, 3], rates(6, uplink=1.0))
    assert took == pytest.approx([200, 200, 0, 0, 200, 0], rel=0.03)


def test_acknowledgements_wait_behind_data_of_the_other_direction() -> None:
    # three flows fill the way back; the one that goes the other way has its own way to itself
    flows = {(0, 4): 100.0, (5, 1): 100.0, (6, 2): 100.0, (7, 3): 100.0}
    labels = [0, 0, 0, 0, 1, 1, 1, 1]
    waits = ends(one_round(8, flows), labels, rates(8, uplink=1.0))
    assert waits[0] == pytest.approx(waits[5], rel=0.05)
    free = ends(one_round(8, flows, fair=True), labels, rates(8, uplink=1.0))
    assert free[0] == pytest.approx(100)
    assert free[5] == pytest.approx(300, rel=0.02)


def test_one_flow_between_racks_has_no_more_than_its_own_limit() -> None:
    rounds = one_round(4, {(0, 1): 100.0, (2, 3): 100.0})
    assert ends(rounds, [0, 1, 2, 2], rates(4, far=0.25)) == pytest.approx([400, 0, 100, 0])


@pytest.mark.parametrize("fair", [False, True])
def test_all_flows_share_the_core(fair: bool) -> None:
    rounds = one_round(4, dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 0)], 100.0), fair=fair)
    took = ends(rounds, [0, 0, 1, 1], rates(4, core=2.0))
    assert took == pytest.approx([200] * 4, rel=0.02)
    took = ends(rounds, [0, 0, 1, 1], rates(4, core=5.0))
    assert took == pytest.approx([100] * 4)


def test_a_host_is_done_when_what_it_sends_and_what_it_receives_is() -> None:
    rounds = one_round(3, {(0, 1): 100.0, (1, 2): 50.0, (2, 0): 10.0})
    took = seen(rounds, predict(rounds, np.zeros((1, 3), dtype=int), rates(3)))[0, 0]
    assert took.tolist() == pytest.approx([100, 100, 50])


@pytest.mark.parametrize("seed", range(25))
def test_fair_division_agrees_with_a_network_of_formulas(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = tuple(random.integers(1, 5, random.integers(2, 5)).tolist())
    n = sum(sizes)
    uplink = float(random.choice([50, 100, 200]))
    topology, truth = shuffled_racks(sizes, seed, host=100, uplink=uplink)
    labels = np.empty(n, dtype=int)
    for rack, members in enumerate(truth):
        labels[list(members)] = rack
    order = random.permutation(n)
    flows = [(int(a), int(b)) for a, b in zip(order, np.roll(order, 1), strict=True) if a != b]
    flows = flows[: random.integers(1, n + 1)]
    sent = random.uniform(1e5, 4e5, len(flows))
    actual = Network(topology)._ends(flows, sent / 1e6)
    rounds = one_round(n, dict(zip(flows, sent.tolist(), strict=True)), fair=True)
    model = rates(n, host=100 * MBIT / 1e6, uplink=uplink * MBIT / 1e6)
    found = np.array(ends(rounds, labels.tolist(), model))[[src for src, _ in flows]]
    assert found == pytest.approx(actual, rel=0.06)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_no_uplink_carries_more_than_it_can_nor_a_flow_more_than_its_hosts(
    seed: int, fair: bool
) -> None:
    random = np.random.default_rng(seed)
    n, rounds = 9, 6
    dst = np.array([np.roll(np.arange(n), k) for k in random.integers(1, n, rounds)])
    size = random.uniform(0, 1e5, (rounds, n)) * (random.random((rounds, n)) < 0.8)
    made = Rounds(size=size, dst=dst, src=np.argsort(dst, axis=1), took_us=size + 1.0, fair=fair)
    labels = random.integers(0, 3, (4, n))
    rate = Rates(
        host=random.uniform(1, 2, (4, n)),
        uplink=np.take_along_axis(random.uniform(0.5, 3, (4, 3)), labels, axis=1),
        far=np.full(4, np.inf),
        core=np.full(4, np.inf),
    )
    took = predict(made, labels, rate)
    assert ((took > 0) == (size > 0)).all()
    for c in range(4):
        alone = size / np.minimum(rate.host[c], rate.host[c][dst])
        assert (took[c] >= 0.999 * alone).all()
        for rack in range(3):
            for end in (np.broadcast_to(labels[c], dst.shape), labels[c][dst]):
                mine = (end == rack) & (labels[c] != labels[c][dst])
                carried = np.where(mine, size, 0).sum(axis=1)
                longest = np.where(mine, took[c], 0).max(axis=1)
                room = rate.uplink[c][labels[c] == rack]
                assert (carried <= 1.1 * longest * (room[0] if len(room) else 1) + 1e-6).all()
