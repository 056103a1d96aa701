"""Blame, single steps, doubling, and when it stops."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.adapt.act import finetune
from headrace.collectives.adapt.act.finetune import (
    BETA,
    EPSILON,
    FIRST,
    GAMMA,
    MAX_STALE,
    Account,
    Finetune,
)
from headrace.collectives.plan.generators.templates.two_level.masters import (
    Masters,
    masters_from_weights,
    spread_masters,
)
from headrace.collectives.plan.locality import RankGroups
from headrace.errors import InputError
from tests.collectives.adapt.networks import imbalance
from tests.collectives.plan.generators.templates.two_level.test_masters import check, groupings
from tests.collectives.plan.load import load_bytes

FLAT: RankGroups = tuple((rank,) for rank in range(4))


def even(n: int, rate: float = 1e6) -> np.ndarray:
    return np.full((n, n), rate)


def test_blame_is_time_and_bytes_on_their_scales() -> None:
    sent = np.array([[0, 3.0, 1.0], [2.0, 0, 0], [1.0, 1.0, 0]])
    rtt = np.array([[0, 5.0, 9.0], [7.0, 0, 100.0], [np.nan, 2.0, 0]])
    # Rank 1 sends nothing to 2: that round trip is none of its business.
    times = np.array([9 + 4, 7 + 2, 2 + 2.0])
    bytes_ = np.array([4, 2, 2.0])
    wanted = GAMMA * times / times.mean() + BETA * (bytes_ - 2) / 2
    assert Account.of(sent, even(3), rtt).blame == pytest.approx(wanted)


def test_nothing_is_divided_by_nothing() -> None:
    nothing = np.zeros((3, 3))
    assert (Account.of(nothing, even(3), nothing).blame == 0).all()
    same = np.ones((3, 3)) - np.eye(3)
    assert Account.of(same, even(3), nothing).blame == pytest.approx([1, 1, 1])
    assert imbalance(nothing) == 1
    assert imbalance(same) == 1
    assert imbalance(np.array([[0, 1.0], [0, 0]])) == np.inf
    tuner = Finetune()
    assert tuner.step(spread_masters(((0, 1, 2),), 3), nothing, even(3), nothing) is None


def test_the_slow_end_of_a_pair_is_to_blame() -> None:
    rates = even(4)
    rates[3], rates[:, 3] = 1e5, 1e5
    sent = np.ones((4, 4)) - np.eye(4)
    found = Account.of(sent, rates, np.zeros((4, 4))).blame
    assert found[3] == pytest.approx(10 * found[0])
    assert found[:3] == pytest.approx([found[0]] * 3)


def test_epsilon_is_an_imbalance_of_five_percent_among_equals() -> None:
    for ratio, moves in ((1.04, False), (1.07, True)):
        sent = np.zeros((4, 4))
        for rank in range(4):
            sent[rank, (rank + 1) % 4] = ratio if rank == 0 else 1.0
        found = Account.of(sent, even(4), np.zeros((4, 4))).blame
        assert (found.max() / found.min() > EPSILON) == moves


@patch.object(finetune, "FIRST", 0.2)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(groupings(), st.integers(2, 16), st.integers(0, 10_000))
def test_moves_keep_groups_and_no_rank_becomes_slower_than_the_slowest(
    groups: RankGroups, chunks: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    n = sum(map(len, groups))
    masters = masters_from_weights(
        groups,
        chunks,
        group_weights=random.uniform(0.1, 1, len(groups)),
        rank_weights=random.uniform(0.1, 1, n),
    )
    rates, rtt = 10 ** random.uniform(6, 7, (n, n)), np.zeros((n, n))
    tuner, before = Finetune(), np.inf
    for _ in range(4):
        sent = load_bytes(masters, 1e4)
        if n > 1:
            now = slowest(sent, rates)
            assert now <= before * (1 + BETA / GAMMA)
            before = now
        better = tuner.step(masters, sent, rates, rtt)
        if better is None:
            break
        check(better)
        assert better.groups == groups
        masters = better


def slowest(sent: np.ndarray, rates: np.ndarray) -> float:
    """Time of the slowest rank, a slow pair being charged to the end that is always slow."""
    off = rates * ~np.eye(len(rates), dtype=bool)
    best = np.minimum(off.max(axis=1), off.max(axis=0))
    fair = rates * np.maximum(best[:, None] / best[None, :], 1)
    return float((sent / fair).sum(axis=1).max())


def test_the_same_rank_again_gives_twice_as_much() -> None:
    """Rank 0 is global master of most chunks; all are as fast."""
    masters = masters_from_weights(
        FLAT, 256, group_weights=[10, 1, 1, 1], rank_weights=[1, 1, 1, 1]
    )
    tuner = Finetune()
    given_: list[int] = []
    for _ in range(3):
        better = tuner.step(masters, load_bytes(masters, 1e4), even(4), np.zeros((4, 4)))
        assert better is not None
        given_.append(int(masters.global_counts[0] - better.global_counts[0]))
        masters = better
    first = round(256 * FIRST)
    assert given_ == [first, 2 * first, 4 * first]


def run(masters: Masters, rates: np.ndarray, most: int = 40) -> tuple[Masters, int]:
    """Run until the stop rule says so, times being what the account says; and how many steps."""
    tuner = Finetune()
    none = np.zeros_like(rates)
    for number in range(most):
        better = tuner.step(masters, load_bytes(masters, 1e4), rates, none)
        if better is None:
            assert tuner.step(masters, load_bytes(masters, 1e4), rates, none) is None
            return masters, number
        masters = better
    raise AssertionError("does not stop")


def test_equals_end_within_five_percent() -> None:
    masters = masters_from_weights(
        FLAT, 256, group_weights=[10, 1, 1, 1], rank_weights=[1, 1, 1, 1]
    )
    done, steps = run(masters, even(4))
    assert imbalance(load_bytes(done, 1.0)) < 1.05
    assert steps < 10
    balanced = spread_masters(FLAT, 256)
    assert run(balanced, even(4)) == (balanced, 0)


def test_without_masters_left_the_next_one_is_looked_at() -> None:
    """Rank 0 is slow and has nothing to give; of the others, rank 1 has too much."""
    rates = even(4)
    rates[0], rates[:, 0] = 3e5, 3e5
    masters = masters_from_weights(FLAT, 240, group_weights=[0, 4, 1, 1], rank_weights=[1] * 4)
    done, steps = run(masters, rates)
    assert done.global_counts[0] == 0
    assert imbalance(load_bytes(done, 1.0)[1:]) < imbalance(load_bytes(masters, 1.0)[1:])
    assert steps == MAX_STALE  # the step waits for rank 0 all the same


def test_what_made_steps_slower_is_taken_back_and_then_it_stops() -> None:
    masters = masters_from_weights(FLAT, 64, group_weights=[6, 1, 1, 1], rank_weights=[1] * 4)
    tuner, none = Finetune(), np.zeros((4, 4))

    def step(now: Masters, step_us: float) -> Masters | None:
        return tuner.step(now, load_bytes(now, 1e4), even(4), none, step_us=step_us)

    moved = step(masters, 100.0)
    assert moved is not None
    assert step(moved, 120.0) is masters
    again = step(masters, 100.0)
    assert again is not None
    assert step(again, 120.0) is masters  # the third in a row that was no faster
    assert step(masters, 100.0) is None


def test_a_sole_rank_and_unknown_rates() -> None:
    alone = spread_masters(((0,),), 2)
    assert Finetune().step(alone, np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1))) is None
    with pytest.raises(InputError, match=r"bandwidth\[0, 1\] is nan"):
        Finetune().step(
            spread_masters(FLAT, 4), np.ones((4, 4)), np.full((4, 4), np.nan), np.zeros((4, 4))
        )
