from hypothesis import given
from hypothesis import strategies as st

from headrace.collectives.measure.round_robin import local_rounds, rounds


@given(st.integers(min_value=2, max_value=40))
def test_every_pair_meets_once_in_rounds_of_disjoint_pairs(players: int) -> None:
    plan = rounds(players)
    assert len(plan) == players - 1 + players % 2
    met = [pair for meeting in plan for pair in meeting]
    assert sorted(met) == [(a, b) for a in range(players) for b in range(a + 1, players)]
    for meeting in plan:
        seated = [player for pair in meeting for player in pair]
        assert len(seated) == len(set(seated))


def test_one_player_meets_nobody() -> None:
    assert [pair for meeting in rounds(1) for pair in meeting] == []


def test_local_rounds_probe_one_pair_of_each_host_at_a_time() -> None:
    members = ((0, 1, 2), (3,), (4, 5))
    plan = local_rounds(members)
    host_of = {rank: host for host, ranks in enumerate(members) for rank in ranks}
    met = [pair for meeting in plan for pair in meeting]
    assert sorted(met) == [(0, 1), (0, 2), (1, 2), (4, 5)]
    for meeting in plan:
        hosts = [host_of[a] for a, _ in meeting]
        assert len(hosts) == len(set(hosts))
