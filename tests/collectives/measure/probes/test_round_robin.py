from hypothesis import given
from hypothesis import strategies as st

from headrace.collectives.measure.probes.round_robin import local_rounds, rounds


@given(st.integers(min_value=2, max_value=40))
def test_every_pair_is_once_in_rounds_of_disjoint_pairs(hosts: int) -> None:
    plan = rounds(hosts)
    assert len(plan) == hosts - 1 + hosts % 2
    found = [pair for pairs in plan for pair in pairs]
    assert sorted(found) == [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
    for pairs in plan:
        ends = [host for pair in pairs for host in pair]
        assert len(ends) == len(set(ends))


def test_one_host_has_no_pairs() -> None:
    assert [pair for pairs in rounds(1) for pair in pairs] == []


def test_local_rounds_probe_one_pair_of_each_host_at_a_time() -> None:
    members = ((0, 1, 2), (3,), (4, 5))
    plan = local_rounds(members)
    host_of = {rank: host for host, ranks in enumerate(members) for rank in ranks}
    found = [pair for pairs in plan for pair in pairs]
    assert sorted(found) == [(0, 1), (0, 2), (1, 2), (4, 5)]
    for pairs in plan:
        hosts = [host_of[a] for a, _ in pairs]
        assert len(hosts) == len(set(hosts))
