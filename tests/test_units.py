import re
from pathlib import Path

import pytest

from headrace.units import duration, mbit, ms, rate, size

SOURCES = Path(__file__).parents[1] / "src" / "headrace"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (size(1023), "1023 B"),
        (size(1 << 10), "1 KiB"),
        (size(1023 << 10), "1023 KiB"),
        (size(3 << 29), "1.5 GiB"),
        (duration(None), ""),
        (duration(999.9), "999.9 us"),
        (duration(1500.0), "1.5 ms"),
        (duration(2e6), "2 s"),
        (ms(1234.0), "1.23 ms"),
        (ms(1_234_567.0), "1,235 ms"),
        (rate(80_000.0), "100 Mbit/s"),
        (rate(80.0), "100 Gbit/s"),
    ],
)
def test_quantities_have_their_unit(shown: str, text: str) -> None:
    assert shown == text


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
