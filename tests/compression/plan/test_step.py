"""The step's model against cells that were computed by hand, and what always holds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.network import SCHEMES, FormulaNetwork
from headrace.compression.plan.step import (
    AFTER,
    DURING,
    MODES,
    BucketRound,
    BucketWork,
    StepWork,
    step_time,
    step_work,
)
from headrace.compression.policy import Policy
from tests.compression.plan.cells import MB, profile, ring

BF16, SIGN, MINMAX, TOPK, POWER = (
    CodecSpec.parse(text) for text in ("bf16", "sign", "minmax:8", "topk:1%", "powersgd:4")
)
ROUNDING = 1 + 1e-9


def total(
    codec: CodecSpec,
    mode: str,
    network: FormulaNetwork | None = None,
    *,
    gamma: float = 1.0,
    contention: float = 1.0,
) -> float:
    work = step_work(profile(gamma=gamma, contention=contention), codec, 4, mode)
    return step_time(work, network or ring()).total_us


def test_equal_buckets_that_are_ready_at_once_follow_the_papers_formula() -> None:
    """T = max(gamma T_comp, (k-1) T_comm(b)) + T_comm(b_last), and the forward pass."""
    exchange = 2 * 3 / 4 * 1000  # 1 MB among 4 at 1 GB/s
    for gamma in (1.0, 1.07):
        for bandwidth in (1e8, 3e8, 1e9, 1e10):
            comm = exchange * 1e9 / bandwidth
            wanted = max(gamma * 9000, 2 * comm) + comm
            found = total(NONE, DURING, ring(bytes_per_s=bandwidth), gamma=gamma)
            assert found == pytest.approx(1000 + wanted), (gamma, bandwidth)


def test_an_exchange_waits_for_its_bucket_and_the_one_before() -> None:
    work = step_work(profile((2000.0, 2500.0, 9000.0)), NONE, 4, DURING)
    slow = ring(bytes_per_s=5e8)  # 3,000 us a bucket: 2,000-5,000, 5,000-8,000, 9,000-12,000
    found = step_time(work, slow)
    assert found.total_us == pytest.approx(1000 + 12_000)
    assert found.communication_us == pytest.approx(9000)
    assert found.exposed_us == pytest.approx(3000)


def test_a_cast_bucket_is_encoded_sent_and_decoded_before_the_next() -> None:
    """Casts of 100 and 50 us, exchanges of 750 us; the first two delay the backward pass."""
    last = 100 + 750 + 50
    assert total(BF16, DURING) == pytest.approx(1000 + 9000 + 2 * 150 + last)
    assert total(BF16, DURING, contention=0.0) == pytest.approx(1000 + 9000 + last)


def test_after_the_backward_pass_all_is_one_exchange_in_pieces() -> None:
    """1.5 MB: a piece of 2^20 bytes is encoded before the first is sent, and the rest beside it."""
    share = (1 << 20) / 1_500_000
    wanted = 1000 + 9000 + max(300 + 2250 * share, 2250 + 300 * share) + 150
    assert total(BF16, AFTER, gamma=1.07) == pytest.approx(wanted)


def test_a_sharded_codec_encodes_a_shard_again_and_decodes_all_twice() -> None:
    """8 bits: 250 KB and 8 bytes for each of 245 buckets, in shards; then the second encoding."""
    work = step_work(profile(), MINMAX, 4, DURING)
    first, second = work.buckets[0].rounds
    assert [first.compute_us, second.compute_us] == pytest.approx([400, 200 + 400 / 4])
    assert work.buckets[0].decode_us == pytest.approx(200)
    ((kind, there),), ((kind_back, back),) = first.exchanges, second.exchanges
    assert (kind, kind_back) == ("all_to_all", "allgather")
    assert there == pytest.approx(252_000, rel=0.01)
    assert there == pytest.approx(4 * back)
    one = 700 + (0.75 * there + 3 * back) / 1e3
    found = step_time(work, ring())  # two beside the backward pass delay it; all decode at the end
    assert found.total_us == pytest.approx(1000 + 9000 + 2 * 700 + one + 3 * 200)
    assert found.codec_us == pytest.approx(3 * 900)


def test_a_gathered_codec_decodes_the_payloads_of_all() -> None:
    work = step_work(profile(), TOPK, 4, AFTER)
    ((only,),) = (bucket.rounds for bucket in work.buckets)
    assert [kind for kind, _ in only.exchanges] == ["allgather"]
    assert only.compute_us == pytest.approx(3 * 500)
    assert work.buckets[0].decode_us == pytest.approx(4 * 3 * 5)


def test_factors_travel_in_two_rounds() -> None:
    work = step_work(profile(), POWER, 4, AFTER)
    (bucket,) = work.buckets
    assert [each.compute_us for each in bucket.rounds] == pytest.approx([300, 300])
    assert [dict(each.exchanges) for each in bucket.rounds] == [
        {"allreduce": 3 * 4 * 4 * 250},
        {"allreduce": 3 * 4 * 4 * 1000},
    ]


def test_small_tensors_travel_as_they_are() -> None:
    rules = Policy(except_for=["m0"])
    work = step_work(profile(), BF16, 4, AFTER, rules)
    (only,) = work.buckets[0].rounds
    assert dict(only.exchanges) == {"allreduce": MB + 2 * MB / 2}
    assert only.compute_us == pytest.approx(200)


def test_gradients_of_16_bits_travel_as_they_are() -> None:
    measured = profile()
    halves = tuple(replace(tensor, element_bytes=2) for tensor in measured.tensors)
    work = step_work(replace(measured, tensors=halves), NONE, 4, AFTER)
    assert work.exchanged_bytes == 3 * MB / 2


def test_memory_is_residuals_and_payloads() -> None:
    work = step_work(profile(), SIGN, 4, AFTER)
    assert 4 * 750_000 < work.memory_bytes < 4 * 750_000 * 1.1
    assert step_work(profile(), NONE, 4, DURING).memory_bytes == 0


def test_a_codec_or_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(CompressionError, match="terngrad is not in the profile of equal, needs"):
        step_work(profile(), CodecSpec.parse("terngrad"), 4, AFTER)
    with pytest.raises(CompressionError, match="mode is 'before', needs one of during, after"):
        step_work(profile(), NONE, 4, "before")


times = st.floats(0, 1e5)
exchanges = st.lists(
    st.tuples(st.sampled_from(["allreduce", "allgather", "all_to_all"]), st.floats(0, 1e8)),
    min_size=1,
    max_size=2,
)


@st.composite
def works(draw: st.DrawFn) -> StepWork:
    ready = sorted(draw(st.lists(st.floats(0, 1), min_size=1, max_size=5)))
    backward = draw(times)
    return StepWork(
        codec=NONE,
        mode=draw(st.sampled_from(MODES)),
        forward_us=draw(times),
        backward_us=backward,
        gamma=draw(st.floats(1, 2)),
        contention=draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])),
        buckets=tuple(
            BucketWork(
                ready_us=share * backward,
                rounds=tuple(
                    BucketRound(compute_us=draw(times), exchanges=tuple(draw(exchanges)))
                    for _ in range(draw(st.integers(1, 2)))
                ),
                decode_us=draw(times),
            )
            for share in ready
        ),
        decoded_last=draw(st.booleans()),
        memory_bytes=0,
    )


networks = st.builds(
    lambda scheme, workers, rate, alpha: replace(ring(workers, rate, alpha), scheme=scheme),
    st.sampled_from(sorted(SCHEMES)),
    st.integers(2, 128),
    st.floats(1e6, 1e11),
    st.floats(0, 1e3),
)


@settings(max_examples=150)
@given(works(), networks, st.floats(1, 100))
def test_a_faster_network_is_never_slower(
    work: StepWork, network: FormulaNetwork, factor: float
) -> None:
    faster = network.at_bandwidth(network.bandwidth_bytes_per_s * factor)
    assert step_time(work, faster).total_us <= step_time(work, network).total_us * ROUNDING


@settings(max_examples=150)
@given(works(), networks, st.floats(0, 1))
def test_more_compression_at_equal_cost_is_never_slower(
    work: StepWork, network: FormulaNetwork, exchanged: float
) -> None:
    less = work.scaled(exchanged=exchanged)
    assert step_time(less, network).total_us <= step_time(work, network).total_us * ROUNDING


@settings(max_examples=100)
@given(works(), networks)
def test_no_step_is_shorter_than_its_compute_or_its_exchanges(
    work: StepWork, network: FormulaNetwork
) -> None:
    found = step_time(work, network)
    compute = work.forward_us + work.backward_us
    assert found.total_us * ROUNDING >= compute
    assert found.total_us * ROUNDING >= work.forward_us + found.communication_us
    assert found.exposed_us == pytest.approx(found.total_us - compute)


def test_contention_delays_the_backward_pass() -> None:
    """Two buckets' codecs compute beside it, the third's after."""
    ends = [total(SIGN, DURING, contention=contention) for contention in (0.0, 0.5, 1.0, 2.0)]
    work = step_work(profile(), SIGN, 4, DURING)
    codec = sum(each.compute_us for each in work.buckets[0].rounds)
    assert codec == pytest.approx(40 + 20 + 40 / 4)
    assert [end - ends[0] for end in ends] == pytest.approx([0, codec, 2 * codec, 4 * codec])
