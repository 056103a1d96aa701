from dataclasses import replace
from typing import Any

import pytest

from headrace.collectives.plan.book import PlanBook
from headrace.demo.forecast import forecast
from headrace.demo.scenario import SPEC, Comparison, rank_hosts
from headrace.errors import HeadraceError, InputError, TestbedError

UPLINK_PAYLOAD_BYTES_PER_S = 100e6 / 8 * 1448 / 1514


def test_a_random_order_is_drawn_and_can_be_repeated() -> None:
    drawn = rank_hosts(SPEC, "random", None)
    assert drawn.seed is not None
    assert rank_hosts(SPEC, "random", drawn.seed) == drawn
    assert len({rank_hosts(SPEC, "random", seed).order for seed in range(30)}) > 5


def test_a_placement_names_host_and_rack_of_every_rank() -> None:
    placed = rank_hosts(SPEC, "interleaved", 7)
    assert placed.hosts == ("host0", "host2", "host1", "host3")
    assert placed.racks == ("rack0", "rack1", "rack0", "rack1")
    assert placed.seed is None  # nothing was drawn, so no seed repeats it
    with pytest.raises(TestbedError, match="host9"):
        rank_hosts(SPEC, "host0,host9", None)


def test_one_rank_is_not_enough() -> None:
    with pytest.raises(InputError, match="'host0'.* needs at least two ranks"):
        rank_hosts(SPEC, "host0", None)


def test_forecasts_are_the_plans_own_predictions(book: PlanBook) -> None:
    for entry in book.entries:
        (said,) = forecast(book, [entry.plan.total_bytes])
        assert said.predicted_us == entry.plan.predicted_us
        assert said.bound_us == entry.plan.bound.total_us
        assert said.gap == pytest.approx(entry.plan.gap)


def test_forecasts_lie_between_the_bound_and_a_little_more(book: PlanBook) -> None:
    for each, nbytes in zip(
        forecast(book, [595_968, 2_103_296]), [595_968, 2_103_296], strict=True
    ):
        assert each.total_bytes == nbytes
        # all of the gradient has to leave each rack, and half of it is in the other one
        assert each.bound_us >= nbytes / UPLINK_PAYLOAD_BYTES_PER_S * 1e6
        assert each.bound_us <= each.predicted_us < 1.1 * each.bound_us
        assert each.gap == pytest.approx(each.predicted_us / each.bound_us - 1)


def test_speed_up_and_shares(comparison: Comparison) -> None:
    assert comparison.speed_up == pytest.approx(3.0)
    assert comparison.gloo.network_share == pytest.approx(1 - 25 / 1200)
    assert comparison.headrace.allreduce_us == 372_000
    assert comparison.bound_us < comparison.predicted_us < 372_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": 0.3487}, "differ by 4.4e-03"),
        ({"right": 337}, "339 are classified right on gloo and 337 on headrace"),
        ({"ranks_agree": False}, "headrace: the ranks ended with different weights"),
    ],
)
def test_another_network_is_an_error(
    comparison: Comparison, changes: dict[str, Any], message: str
) -> None:
    comparison.check()
    with pytest.raises(HeadraceError, match=message):
        replace(comparison, headrace=replace(comparison.headrace, **changes)).check()
