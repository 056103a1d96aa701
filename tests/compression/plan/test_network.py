"""Times of collectives: Table 4.2's, and those of a plan book."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.collectives import predictor
from headrace.compression.errors import CompressionError
from headrace.compression.plan.network import (
    SCHEMES,
    BookNetwork,
    FormulaNetwork,
)
from headrace.topology.presets import uniform
from tests.compression.plan.cells import MB, ring


def test_an_allreduce_costs_what_table_4_2_says() -> None:
    wanted = {  # of 1 MB among 8 at 1 GB/s (1,000 us), latency 10 us
        "ring": 2 * 7 * 10 + 2 * 7 / 8 * 1000,
        "tree": 2 * 3 * 10 + 2 * 3 * 1000,
        "server": 2 * 10 + 2 * 7 * 1000,
    }
    for scheme, us in wanted.items():
        network = replace(ring(8, alpha_us=10.0), scheme=scheme)
        assert network.exchange_us("allreduce", MB) == pytest.approx(us)


def test_gathers_grow_with_the_workers_and_exchanges_do_not() -> None:
    for scheme in SCHEMES:
        four, eight = (replace(ring(workers), scheme=scheme) for workers in (4, 8))
        assert eight.exchange_us("allgather", MB) > 2 * four.exchange_us("allgather", MB)
    assert ring(4).exchange_us("all_to_all", MB) == pytest.approx(750)
    assert ring(8).exchange_us("all_to_all", MB) == pytest.approx(875)


def test_ranks_of_a_host_share_its_link_in_an_exchange_but_not_in_a_ring() -> None:
    shared = replace(ring(8), ranks_per_host=4)
    assert shared.exchange_us("allreduce", MB) == ring(8).exchange_us("allreduce", MB)
    assert shared.exchange_us("all_to_all", MB) == pytest.approx(4 * 4 / 8 * 1000)


def test_impossible_networks_are_refused_by_field() -> None:
    usual: dict[str, Any] = {"scheme": "ring", "workers": 4, "bandwidth_bytes_per_s": 1e9}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"scheme": "star"}, "scheme is 'star', needs one of ring, tree, server"),
        ({"workers": 1}, "workers is 1, needs 2 to"),
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth is 0 bytes/s, needs 10000 to"),
        ({"alpha_us": -1.0}, "latency is -1 us, needs 0 to"),
        ({"ranks_per_host": 5}, r"ranks per host is 5, needs 1 to 4 \(workers\)"),
    ]
    for change, message in changes:
        with pytest.raises(CompressionError, match=message):
            FormulaNetwork(**{**usual, **change})


def test_a_network_of_plans_is_predicted_and_scaled() -> None:
    topology = uniform(4, alpha_us=10.0, bytes_per_s=1e9)
    network = BookNetwork(predictor=predictor(topology))
    assert network.workers == 4
    assert network.bandwidth_bytes_per_s == pytest.approx(1e9)
    whole = network.exchange_us("allreduce", 4 * MB)
    assert 1.5 * 4000 <= whole < 2.5 * 4000  # a ring's 2(n-1)/n, with latencies
    assert network.exchange_us("allgather", MB) >= MB / 1e3  # a rank's links work together
    faster = network.at_bandwidth(4e9)
    assert faster.bandwidth_bytes_per_s == pytest.approx(4e9)
    assert faster.exchange_us("allreduce", 4 * MB) < whole / 2


def test_other_rates_scale_the_part_of_the_bytes_in_a_book() -> None:
    found = BookNetwork(predictor=predictor(uniform(3, alpha_us=20.0, bytes_per_s=1e8)))
    faster = found.at_bandwidth(1e9)
    assert faster.bandwidth_bytes_per_s == pytest.approx(1e9)
    large, latency = (found.exchange_us("allreduce", size) for size in (1 << 22, 1))
    assert faster.exchange_us("allreduce", 1) == latency
    assert faster.exchange_us("allreduce", 1 << 22) == pytest.approx(
        latency + (large - latency) / 10, rel=0.02
    )
    really = predictor(uniform(3, alpha_us=20.0, bytes_per_s=1e9))
    assert faster.exchange_us("allreduce", 1 << 22) == pytest.approx(
        really.predict_us("allreduce", 1 << 22), rel=0.1
    )
    assert faster.at_bandwidth(1e8).exchange_us("allreduce", 1 << 22) == pytest.approx(large)
    between = found.exchange_us("allreduce", 3_000_000)
    assert found.exchange_us("allreduce", 1 << 21) < between < large
