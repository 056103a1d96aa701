"""Break-even bandwidths, needed compression, fewer exchanges, and the advice that has them."""

from dataclasses import replace

import pytest

from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.advice import advise
from headrace.compression.plan.curves import (
    cost_against_compression,
    needed_by_bandwidth,
    speed_up_by_bandwidth,
    speed_up_by_compute,
)
from headrace.compression.plan.step import AFTER, DURING, step_time, step_work
from headrace.compression.plan.whatif import (
    NEAR_LINEAR,
    break_even,
    fewer_exchanges,
    needed_compression,
)
from tests.compression.plan.cells import profile, ring

SIGN, MINMAX = CodecSpec.parse("sign"), CodecSpec.parse("minmax:8")


def test_at_the_break_even_bandwidth_times_are_equal_and_the_winner_changes_there() -> None:
    plain = step_work(profile(), NONE, 4, DURING)
    for codec in (SIGN, MINMAX):
        coded = step_work(profile(), codec, 4, AFTER)
        even = break_even(coded, plain, ring())
        assert even is not None
        for rate, faster in ((even * 0.99, True), (even * 1.01, False)):
            at = ring(bytes_per_s=rate)
            won = step_time(coded, at).total_us < step_time(plain, at).total_us
            assert won == faster, (codec, rate)
        at = ring(bytes_per_s=even)
        assert step_time(coded, at).total_us == pytest.approx(
            step_time(plain, at).total_us, rel=1e-5
        )


def test_a_codec_that_is_faster_or_slower_everywhere_has_no_break_even() -> None:
    plain = step_work(profile(), NONE, 4, DURING)
    free = replace(plain.scaled(exchanged=0.5), codec=SIGN)
    costly = plain.scaled(compute=10.0)
    assert break_even(free, plain, ring(bytes_per_s=1e7), decades=1) is None
    assert break_even(costly, plain, ring(bytes_per_s=1e12), decades=1) is None


def test_with_the_needed_compression_a_step_scales_and_with_less_it_does_not() -> None:
    plain = step_work(profile((1000.0, 5000.0, 9000.0), gamma=1.05), NONE, 4, DURING)
    limit = (1 + NEAR_LINEAR) * (1000 + 1.05 * 9000)
    for rate in (1e7, 1e8, 1e9):
        network = ring(bytes_per_s=rate)
        ratio = needed_compression(plain, network)
        assert ratio is not None
        assert ratio > 1
        for more, scales in ((1.001, True), (0.999, False)):
            found = step_time(plain.scaled(exchanged=1 / (ratio * more)), network).total_us
            assert (found <= limit) == scales
    assert needed_compression(plain, ring(bytes_per_s=1e12)) == 1.0
    assert needed_compression(plain, ring(alpha_us=1e4)) is None


def test_fewer_exchanges_divide_the_communication() -> None:
    plain = step_work(profile(), NONE, 4, DURING)
    once = fewer_exchanges(plain, ring(), 1)
    assert once.total_us == pytest.approx(1000 + 9000 + 3 * 1500)
    assert fewer_exchanges(plain, ring(), 16).exposed_us == pytest.approx(3 * 1500 / 16)


def test_the_advice_changes_with_the_bandwidth_and_says_why() -> None:
    slow = advise(profile(), ring(bytes_per_s=1e8))
    assert slow.winner.codec == "sign"
    assert "with sign" in slow.why
    assert slow.rows[0] == slow.winner
    assert slow.rows[-1].mode == "every 16 steps"
    fast = advise(profile(), ring(bytes_per_s=1e12))
    assert fast.winner.codec == "none"
    assert "the next best, " in fast.why
    steps = [row.step_us for row in slow.rows[:-1]]
    assert steps == sorted(steps)
    named = {row.codec: row.break_even_bytes_per_s for row in fast.rows}
    assert named["none"] is None
    assert named["sign"] == pytest.approx(
        next(row.break_even_bytes_per_s for row in slow.rows if row.codec == "sign"), rel=0.5
    )


def test_a_codec_without_memory_does_not_win() -> None:
    tight = advise(profile(), ring(bytes_per_s=1e8), memory_bytes=1 << 20)
    sign = next(row for row in tight.rows if row.codec == "sign")
    assert not sign.fits
    assert tight.winner.codec != "sign"
    assert "out of memory: " in tight.why
    full = replace(profile(), used_bytes=1 << 30)
    with pytest.raises(CompressionError, match="memory is 1 MiB, needs more than 1 GiB"):
        advise(full, ring(), memory_bytes=1 << 20)


def test_gathered_payloads_run_out_of_memory_as_workers_grow_and_sharded_ones_do_not() -> None:
    """The paper's all-gathers of TopK and of signs ended so at 16 and 32 workers (4.2.2)."""
    fits: dict[str, list[bool]] = {"topk:1%": [], "sign": []}
    for workers in (4, 64, 1024):
        advice = advise(profile(), ring(workers), memory_bytes=8 << 20, break_evens=False)
        for row in advice.rows:
            if row.codec in fits:
                fits[row.codec].append(row.fits)
    assert fits == {"topk:1%": [True, True, False], "sign": [True, True, True]}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(CompressionError, match="local steps is 0, needs 1 to"):
        advise(profile(), ring(), local_steps=0)
    with pytest.raises(CompressionError, match="fp16 is not in the profile"):
        advise(profile(), ring(), codecs=[CodecSpec.parse("fp16")])


def test_the_curves_show_what_the_figures_show() -> None:
    network = ring(64, bytes_per_s=1e8)
    rates, ups = speed_up_by_bandwidth(profile(), [SIGN], network)["sign"]
    assert len(rates) == len(ups)
    assert ups[0] is not None
    assert ups[-1] is not None
    assert ups[0] > 1.5 > ups[-1]  # compression helps on slow networks (4.10)
    needed = needed_by_bandwidth(profile(), network)
    assert list(needed) == ["batch 0.25", "batch 0.5", "batch 1"]
    for small, large in zip(needed["batch 0.25"][1], needed["batch 1"][1], strict=True):
        assert small is not None
        assert large is not None
        assert small >= large >= 1  # small batches hide less (4.8)
    _, faster = speed_up_by_compute(profile(), SIGN, network)
    assert faster == sorted(faster, key=float)  # faster compute makes it more useful (4.13)
    curves = cost_against_compression(profile(), SIGN, network)
    assert len({values[0] for _, values in curves.values()}) == 1  # k = 1 is the codec itself
    assert [values[-1] for _, values in curves.values()] == sorted(
        values[-1] for _, values in curves.values()
    )
