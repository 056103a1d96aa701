"""The figures of docs/compression.md are what the model says."""

import re
from pathlib import Path

import pytest

from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.advice import LOCAL_STEPS, advise
from headrace.compression.plan.models import bundled_profile
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.step import AFTER, DURING, step_work
from headrace.compression.plan.whatif import NEAR_LINEAR, break_even

TEXT = (Path(__file__).parents[3] / "docs" / "compression.md").read_text()
NETWORK = FormulaNetwork(
    scheme="ring", workers=64, bandwidth_bytes_per_s=1.25e9, alpha_us=12.5, ranks_per_host=1
)


def test_the_table_of_steps() -> None:
    advice = advise(bundled_profile("resnet50", 64), NETWORK)
    found = {f"{row.codec}, {row.mode}": row.step_us for row in advice.rows}
    found["one worker"] = advice.alone_us
    shown = re.findall(r"^\| ([^|]+) \| (\d+) ms \|$", TEXT, re.MULTILINE)
    assert len(shown) == 6
    for row, milliseconds in shown:
        assert found[row] / 1e3 == pytest.approx(float(milliseconds), abs=0.5), row


def test_the_break_even_bandwidths() -> None:
    for model, text in (
        ("resnet50", "at 10.1 Gbit/s there"),
        ("resnet101", "9.55 and"),
        ("bert-base", "and 16 Gbit/s"),
    ):
        profile = bundled_profile(model)
        coded = step_work(profile, CodecSpec.parse("powersgd:4"), 64, AFTER)
        even = break_even(coded, step_work(profile, NONE, 64, DURING), NETWORK)
        assert even is not None
        assert f"{even * 8 / 1e9:.3g}" in text
        assert text in TEXT


def test_the_constants() -> None:
    assert f"at most {NEAR_LINEAR:.0%} longer" in TEXT.replace("\n", " ")
    assert f"once in {LOCAL_STEPS} steps" in TEXT
    for model, millions in (
        ("resnet50", "25.557"),
        ("resnet101", "44.549"),
        ("bert-base", "109.48"),
    ):
        assert f"{bundled_profile(model).elements / 1e6:.5g}" == millions
        assert millions in TEXT
