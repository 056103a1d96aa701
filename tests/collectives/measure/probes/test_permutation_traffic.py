import pytest

from headrace.collectives.measure.probes.permutation_traffic import cyclic_shifts, mixed_directions
from headrace.collectives.measure.probes.round_robin import rounds


@pytest.mark.parametrize("hosts", [4, 5, 8, 9])
def test_shifts_have_every_ordered_pair_once(hosts: int) -> None:
    sent = [pair for pairs in cyclic_shifts(hosts) for pair in pairs]
    assert sorted(sent) == [(a, b) for a in range(hosts) for b in range(hosts) if a != b]


@pytest.mark.parametrize("hosts", [4, 5, 8, 9])
def test_mixed_directions_have_both_directions_of_every_pair_once(hosts: int) -> None:
    plan = list(mixed_directions(hosts))
    assert len(plan) == 2 * len(rounds(hosts))
    for pairs in plan:
        ends = [host for pair in pairs for host in pair]
        assert len(ends) == len(set(ends))
    sent = [pair for pairs in plan for pair in pairs]
    assert sorted(sent) == [(a, b) for a in range(hosts) for b in range(hosts) if a != b]


@pytest.mark.parametrize("hosts", [4, 5, 6, 7, 8, 9])
def test_any_two_hosts_send_to_others_at_the_same_time_somewhere(hosts: int) -> None:
    plan = [*mixed_directions(hosts), *cyclic_shifts(hosts)]
    for a in range(hosts):
        for b in range(a):
            together = [dict(pairs) for pairs in plan]
            assert any(a in dst and b in dst and dst[a] != b and dst[b] != a for dst in together)
