from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.collectives.plan.book import PlanBook
from headrace.demo.forecast import forecast, forecast_rings
from headrace.demo.scenario import SPEC, Comparison, rank_hosts, run_demo
from headrace.demo.show import Show
from headrace.errors import HeadraceError, InputError, TestbedError
from headrace.topology.presets import racks

UPLINK_PAYLOAD_BYTES_PER_S = 100e6 / 8 * 1448 / 1514


def test_a_random_order_is_that_of_a_fixed_seed() -> None:
    """It was drawn anew in every run, and the gain hangs on it."""
    drawn = rank_hosts(SPEC, "random")
    assert drawn.seed == 0
    assert rank_hosts(SPEC, "random", 0) == drawn
    assert len({rank_hosts(SPEC, "random", seed).order for seed in range(30)}) > 5


def test_a_placement_names_host_and_rack_of_every_rank() -> None:
    placed = rank_hosts(SPEC, "interleaved", 7)
    assert placed.hosts == ("host0", "host2", "host1", "host3")
    assert placed.racks == ("rack0", "rack1", "rack0", "rack1")
    assert placed.seed is None  # nothing was drawn, so no seed repeats it
    with pytest.raises(TestbedError, match="host9"):
        rank_hosts(SPEC, "host0,host9")


def test_one_rank_is_not_enough() -> None:
    with pytest.raises(InputError, match="'host0'.* needs at least two ranks"):
        rank_hosts(SPEC, "host0")


def test_a_file_in_place_of_the_folder_to_save_in_is_refused_before_the_testbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback after the network was measured."""
    monkeypatch.delattr("headrace.testbed.Testbed.up")
    file = tmp_path / "results"
    file.touch()
    with pytest.raises(InputError, match="results: no folder can be made: File exists"):
        run_demo(Show(Console()), save=file)


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


def test_rings_cross_an_uplink_once_in_the_best_order_and_twice_in_the_worst() -> None:
    least_us = 2 * 3 / 4 * 4_000_000 / UPLINK_PAYLOAD_BYTES_PER_S * 1e6
    for order, crossings in (("rack", 1), ("interleaved", 2)):
        rings = forecast_rings(SPEC.topology(order), [4_000_000])
        assert rings.order_us == pytest.approx(crossings * least_us, rel=1e-3)
        assert rings.best_us == pytest.approx(least_us, rel=1e-3)
        assert rings.worst_us == pytest.approx(2 * least_us, rel=1e-3)


def test_more_hosts_than_orders_can_be_counted_have_a_sample_of_them() -> None:
    rings = forecast_rings(racks((4, 4), host_bytes_per_s=1e9, uplink_bytes_per_s=1e8), [1 << 20])
    assert rings.best_us < rings.worst_us
    assert rings.best_us == rings.order_us  # rack by rack


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
