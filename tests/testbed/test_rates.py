"""Token buckets for rates, and pacing of connections without one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import TestbedError
from headrace.testbed import TestbedSpec, pace_rate
from headrace.testbed.loopback import pace_table
from headrace.testbed.rates import (
    FRAME_BYTES,
    MAX_BYTES_PER_S,
    MIN_BYTES_PER_S,
    PAYLOAD_SHARE,
    format_rate,
    host_segments,
    parse_rate,
    token_bucket,
)


@pytest.mark.parametrize(
    ("found", "bytes_per_s", "shown"),
    [
        ("400mbit", 50_000_000, "400 Mbit/s"),
        ("2.5 Gbit", 312_500_000, "2.5 Gbit/s"),
        ("500kbps", 62_500, "500 kbit/s"),
        (12_500_000, 12_500_000, "100 Mbit/s"),
        ("12500000", 12_500_000, "100 Mbit/s"),
    ],
)
def test_rates_are_read_and_shown(found: object, bytes_per_s: int, shown: str) -> None:
    assert parse_rate(found) == bytes_per_s
    assert format_rate(bytes_per_s) == shown


@pytest.mark.parametrize("found", [None, True, 1.5, "fast", "-1mbit", "1mb/s", 0])
def test_what_is_no_rate_is_refused(found: object) -> None:
    with pytest.raises(TestbedError, match="needs a number with a unit such as Mbit/s"):
        parse_rate(found)


def test_the_measured_buckets() -> None:
    assert token_bucket(12_500_000).to_tc() == "tbf rate 100000000bit burst 3900 limit 125000"
    assert token_bucket(50_000_000).to_tc() == "tbf rate 400000000bit burst 7456 limit 500000"
    assert [host_segments(rate) for rate in (10**6, 50_000_000, 125_000_000)] == [2, 4, 10]


@given(st.integers(MIN_BYTES_PER_S, MAX_BYTES_PER_S), st.integers(1, 44))
def test_a_bucket_is_never_only_just_full_enough(rate: int, arriving: int) -> None:
    burst = token_bucket(rate, arriving_segments=arriving).burst_bytes
    # the kernel either cuts what arrives, or has some bytes more to make up for lateness
    assert arriving * FRAME_BYTES > burst or burst - arriving * FRAME_BYTES >= 872
    # what is given away after a pause: at most 0.19 ms, but for the two frames that must fit
    assert burst <= max(3900, 190e-6 * rate)


def test_pacing_splits_an_uplink_among_the_hosts_of_its_rack(spec: TestbedSpec) -> None:
    pace = pace_table(spec)
    assert pace["hosts"]["127.0.2.1"]["rack"] == 1
    within = pace_rate(pace, "127.0.1.1", "127.0.1.2")
    across = pace_rate(pace, "127.0.1.1", "127.0.2.2")
    assert within == pytest.approx(50e6 * PAYLOAD_SHARE)
    assert across == pytest.approx(12.5e6 * PAYLOAD_SHARE / 2)
    slow = pace_table(spec.with_rate("host3", 1_000_000))
    assert pace_rate(slow, "127.0.2.2", "127.0.1.1") == pytest.approx(1e6 * PAYLOAD_SHARE)
    with pytest.raises(TestbedError, match=r"10\.0\.0\.1 is not a host of the pacing file"):
        pace_rate(pace, "127.0.1.1", "10.0.0.1")
