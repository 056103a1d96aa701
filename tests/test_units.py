import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import InputError
from headrace.units import (
    duration,
    mbit,
    ms,
    parse_bandwidth,
    parse_count,
    parse_size,
    parse_time,
    rate,
    size,
)

SOURCES = Path(__file__).parents[1] / "src" / "headrace"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (size(1023), "1023 B"),
        (size(1 << 10), "1 KiB"),
        (size(1023 << 10), "1023 KiB"),
        (size(3 << 29), "1.5 GiB"),
        (size(5793), "5.657 KiB"),
        (size(2_666_667, like=8_000_000), "2.667 MB"),
        (size(2_666_667, like=8 << 20), "2.543 MiB"),
        (size(96, like=8_000_000), "96 B"),
        (duration(None), ""),
        (duration(999.9), "999.9 us"),
        (duration(1500.0), "1.5 ms"),
        (duration(2e6), "2 s"),
        (ms(1234.0), "1.23 ms"),
        (ms(1_234_567.0), "1,235 ms"),
        (rate(80_000.0), "100 Mbit/s"),
        (rate(80.0), "100 Gbit/s"),
        (rate(8e6 / 9999.4), "9999 Mbit/s"),
        (rate(8e6 / 9999.7), "10 Gbit/s"),
    ],
)
def test_quantities_have_their_unit(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        *((f"{n}{unit}", f"{n} {unit}") for n in (1, 8, 16, 512) for unit in ("KB", "MB", "MiB")),
        *((f"{n}{unit}", f"{n} {unit}iB") for n in (4, 20, 25, 100, 512) for unit in "KMG"),
        ("1.5MB", "1.5 MB"),
        ("1.5M", "1.5 MiB"),
        ("999", "999 B"),
        ("0", "0 B"),
        ("1024T", "1024 TiB"),
    ],
)
def test_sizes_are_shown_as_they_were_typed(typed: str, shown: str) -> None:
    assert size(parse_size(typed)) == shown


def test_a_beta_of_8_us_per_mb_is_a_gigabit_a_millisecond() -> None:
    assert mbit(8.0) == 1e6


def test_percentages_that_round_to_nothing_have_no_sign() -> None:
    assert f"{-1e-9:z.0%} {-1e-9:+z.1%}" == "0% +0.0%"
    signed = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in sorted(SOURCES.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r":[+]?\.\d%\}", line)
    ]
    assert not signed, f"these can print -0%: write z, as in {{gap:z.0%}}: {signed}"


@pytest.mark.parametrize(
    ("typed", "count"),
    [("6M", 6_000_000), ("1.5K", 1500), ("250000", 250_000), ("4.35K", 4350), ("1 G", 10**9)],
)
def test_counts_are_in_powers_of_1000(typed: str, count: int) -> None:
    """`index measure --sample 6M` took 6,291,456 operations where its default, 6M, is 6,000,000."""
    assert parse_count(typed) == count


@pytest.mark.parametrize("typed", ["6MB", "6MiB", "-1", "many", "", "9999999G", "1.5", "1.2345K"])
def test_what_is_no_count_is_an_error(typed: str) -> None:
    with pytest.raises(InputError, match="sample is"):
        parse_count(typed, "sample")


@pytest.mark.parametrize("parse", [parse_size, parse_count])
def test_a_number_beyond_all_floats_is_refused_like_any_that_is_too_large(
    parse: Callable[[str, str], int],
) -> None:
    """It was OverflowError: `index measure --sample` with 400 digits ended in a traceback."""
    with pytest.raises(InputError, match="--sample is '9+', needs at most"):
        parse("9" * 400, "--sample")


def test_bandwidths_are_read() -> None:
    for text, bytes_per_s in (
        ("10Gbit/s", 1.25e9),
        ("100 Mbit/s", 1.25e7),
        ("400mbit", 5e7),
        ("1.25GB/s", 1.25e9),
        ("125 MB/s", 1.25e8),
        ("800 kbit/s", 1e5),
        ("10Gbps", 1.25e9),
        ("10 gbit/S", 1.25e9),
        ("2 GBps", 2e9),
    ):
        assert parse_bandwidth(text) == pytest.approx(bytes_per_s)


def test_times_are_read_with_their_units() -> None:
    for text, seconds in (
        ("30s", 30),
        ("5min", 300),
        ("1.5 h", 5400),
        ("120ms", 0.12),
        ("30us", 3e-5),
        ("0s", 0),
        ("2d", 172_800),
    ):
        assert parse_time(text) == pytest.approx(seconds)
    for text in ("", "5", "5m", "-1s", "1e3s", "5 minutes", "99999d"):
        with pytest.raises(InputError, match=f"time is '{text}', needs"):
            parse_time(text)
    with pytest.raises(InputError, match="--time-limit is '3ms', needs 1 s to"):
        parse_time("3ms", "--time-limit", least_s=1)


def test_other_texts_are_refused_with_the_units() -> None:
    for text in ("", "10", "fast", "10 Gb/s", "10gbPS", "0Gbit/s", "1e9Gbit/s", "9000TB/s"):
        with pytest.raises(InputError, match=f"bandwidth is '{text}', needs .* Gbit/s"):
            parse_bandwidth(text)
