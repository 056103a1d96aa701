"""Codecs that send all elements in fewer bits: means, residuals, odd values, against NumPy."""

from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.compression.codecs.quantizers import Stochastic
from headrace.compression.codecs.requests import AllGather, AllToAll, Request
from headrace.compression.codecs.table import make_codec
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.traffic import PAYLOAD_LAYOUTS, shard_elements
from tests.compression.codecs.group import average, average_vectors

SAMPLED = pytest.mark.sampled(1)

RANKS = (1, 2, 3, 5)
SIZES = (0, 1, 3, 40, 2500)
CASTS = ("none", "bf16", "fp16")
SUMMED = ("fp8", *(f"minmax:{bits}" for bits in range(2, 9)), "qsgd:2", "qsgd:6", "terngrad")
ALL = (*CASTS, *SUMMED, "sign")


def gradients(ranks: int, n: int, seed: int = 0) -> Tensor:
    """Gradients with a common part, of magnitudes that differ along the vector: (ranks, n)."""
    random = np.random.default_rng([ranks, n, seed])
    common = random.standard_normal(n) * np.geomspace(1, 100, max(n, 1))[:n]
    return torch.tensor(common + random.standard_normal((ranks, n)), dtype=torch.float32)


def buckets(values: np.ndarray, bucket: int) -> list[np.ndarray]:
    return np.split(values, range(bucket, len(values), bucket)) if len(values) else []


def slow_minmax(part: np.ndarray, bits: int) -> np.ndarray:
    levels = np.float32(2**bits - 1)
    low, step = part.min(), part.max() / levels - part.min() / levels
    codes = np.clip(np.rint((part - low) / step), 0, levels) if step else part * 0
    return (low + codes.astype(np.float32) * step).astype(np.float32)


def slow_fp8(part: np.ndarray) -> np.ndarray:
    """Round to 3 bits of mantissa, exponents from -6, after scaling the largest to 448."""
    scale = np.maximum(np.abs(part).max() / np.float32(448), np.finfo(np.float32).tiny)
    scaled = part / scale
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 1e-30))), -6)
    unit = np.exp2(exponent - 3)
    return (np.rint(scaled / unit) * unit * scale).astype(np.float32)


def slow_sharded(spec: str, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and residuals by the definition: shard by shard, and bucket by bucket."""
    parsed = CodecSpec.parse(spec)
    bits, bucket = int(parsed.parameter), PAYLOAD_LAYOUTS[parsed.family](parsed).bucket

    def decoded(values: np.ndarray) -> np.ndarray:
        parts = [
            slow_fp8(part) if spec == "fp8" else slow_minmax(part, bits)
            for part in buckets(values, bucket)
        ]
        return np.concatenate(parts) if parts else values

    ranks, n = vectors.shape
    mean, residuals = np.zeros(n, np.float32), vectors.copy()
    shard = shard_elements(n, ranks)
    for owner in range(ranks):
        own = slice(owner * shard, (owner + 1) * shard)
        sent = np.stack([decoded(vector[own]) for vector in vectors])
        residuals[:, own] -= sent
        exact = sent.sum(0, dtype=np.float32) / np.float32(ranks)
        mean[own] = decoded(exact)
        residuals[owner, own] += ranks * (exact - mean[own])
    return mean, residuals


def test_sharded_quantisers_equal_a_slow_reference() -> None:
    for spec in ("fp8", "minmax:2", "minmax:4", "minmax:7", "minmax:8"):
        for ranks in RANKS:
            for n in SIZES:
                given = gradients(ranks, n)
                mean, residuals = average_vectors(spec, list(given), feedback=True)
                slow_mean, slow_residuals = slow_sharded(spec, given.numpy())
                # a sum's last bit can move an element to the next code: a step, in few elements
                for found, expected in ((mean, slow_mean), (residuals, slow_residuals)):
                    close = np.isclose(found.numpy(), expected, rtol=1e-4, atol=1e-3)
                    assert np.sum(~close) <= 0.001 * found.numel(), (spec, ranks, n)


def test_casts_equal_a_slow_reference() -> None:
    for ranks in RANKS:
        for n in SIZES:
            given = gradients(ranks, n)
            exact = sum(given[1:], given[0]) / ranks
            for spec, kind in (
                ("none", torch.float32),
                ("bf16", torch.bfloat16),
                ("fp16", torch.half),
            ):
                total = (given[0] / ranks).to(kind)
                for other in given[1:]:
                    total += (other / ranks).to(kind)
                mean, _ = average_vectors(spec, list(given))
                expected = exact if spec == "none" else total.float()
                assert torch.equal(mean, expected), (spec, ranks, n)


def test_signs_are_a_majority_vote_with_the_mean_scale() -> None:
    for ranks in (*RANKS, 8):
        for n in SIZES:
            given = gradients(ranks, n)
            mean, residuals = average_vectors("sign", list(given), feedback=True)
            scales = np.abs(given.numpy()).mean(1) if n else np.zeros(ranks)
            positive = 2 * (given.numpy() >= 0).sum(0) >= ranks
            expected = np.where(positive, 1, -1) * scales.mean()
            np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-5)
            own = np.where(given.numpy() >= 0, 1, -1) * scales[:, None]
            np.testing.assert_allclose(residuals.numpy(), given.numpy() - own, rtol=1e-4, atol=1e-5)


def test_random_codecs_send_one_of_the_two_levels_beside_a_value() -> None:
    for spec, levels in (("qsgd:2", 1), ("qsgd:4", 7), ("qsgd:8", 127), ("terngrad", 1)):
        given, coder = gradients(1, 1500)[0], Stochastic(CodecSpec.parse(spec))
        payload = torch.zeros(coder.layout.payload_bytes(1500), dtype=torch.uint8)
        coder.encode(given, coder.scale(given), payload, Random(5))
        decoded = torch.empty(1500)
        coder.decode(payload, decoded)
        bucket = coder.layout.bucket
        for part, back in zip(
            buckets(given.numpy(), bucket), buckets(decoded.numpy(), bucket), strict=True
        ):
            norm = np.abs(part).max() if spec == "terngrad" else np.linalg.norm(part)
            level = back / (norm / levels)
            assert np.all(np.abs(level - np.rint(level)) < 1e-3)
            assert np.all(np.abs(back - part) <= 1.001 * norm / levels)


@SAMPLED
def test_random_codecs_are_unbiased() -> None:
    """The mean of many draws is within six standard errors, at every element and in all."""
    given = list(torch.randn((3, 100), generator=torch.Generator().manual_seed(3)))
    exact = torch.stack(given).mean(0)
    for spec in ("qsgd:2", "qsgd:4", "terngrad"):
        assert CodecSpec.parse(spec).traits.unbiased
        draws = torch.stack([average_vectors(spec, given, step=step)[0] for step in range(400)])
        error = draws.mean(0) - exact
        standard = (draws.std(0) / 400**0.5).clamp(min=float(draws.std(0).mean()) / 400**0.5)
        assert bool((error.abs() <= 6 * standard).all()), spec
        shrunk = float((error * exact.sign()).mean())
        assert abs(shrunk) <= 4 * float(standard.mean()) / 100**0.5, spec
        assert float(standard.max()) > 0
        # another step draws other numbers, and the same step the same ones
        assert not torch.equal(draws[0], draws[1])
        assert torch.equal(draws[3], average_vectors(spec, given, step=3)[0])


def test_residuals_and_the_mean_add_up_to_what_was_given() -> None:
    for ranks in RANKS:
        for n in SIZES:
            given = gradients(ranks, n)
            for spec in (*SUMMED, "none", *(("sign", "bf16", "fp16") if ranks == 1 else ())):
                mean, residuals = average_vectors(spec, list(given), feedback=True)
                total = residuals.sum(0) + ranks * mean
                torch.testing.assert_close(total, given.sum(0), rtol=1e-4, atol=1e-2)


@SAMPLED
def test_error_feedback_keeps_residuals_bounded_and_converges_to_the_mean() -> None:
    """The sum of the means lacks the last residuals only; bounds are in norms of the gradients."""
    n, steps = 1000, 50
    bounds = {"fp8": 0.1, "minmax:2": 3, "minmax:4": 0.5, "bf16": 0.003, "fp16": 0.001, "sign": 15}
    for (spec, bound), ranks in product(bounds.items(), RANKS):
        given = gradients(ranks, n)
        if spec == "sign":  # of different ranks a vote loses more than residuals hold
            given = given[:1].expand(ranks, n)
        residuals, total, norms = torch.zeros_like(given), torch.zeros(n), []
        for step in range(steps):
            mean, residuals = average_vectors(
                spec, list(given + residuals), feedback=True, step=step
            )
            total += mean
            norms.append(float(residuals.norm() / given.norm()))
        assert max(norms) <= bound, (spec, ranks)
        error = float((total / steps - given.mean(0)).norm() / given.mean(0).norm())
        lost_in_sums = {"bf16": 0.002, "fp16": 0.0003}.get(spec, 1e-5)
        assert error <= 1.2 * max(norms) / steps + lost_in_sums, (spec, ranks)
        if spec in {"fp8", "minmax:2", "minmax:4"}:  # nor does the error of one step recur
            assert error <= 0.1 * float((mean - given.mean(0)).norm() / given.mean(0).norm())


def test_zeros_stay_zeros_and_tiny_gradients_stay_tiny() -> None:
    for spec in ALL:
        for ranks in (1, 3):
            zeros = torch.zeros(3000)
            mean, residuals = average_vectors(spec, [zeros] * ranks, feedback=True)
            assert not mean.any(), spec
            assert not residuals.any(), spec
            tiny = gradients(1, 3000)[0] * 1e-42
            mean, residuals = average_vectors(spec, [tiny] * ranks, feedback=True)
            assert bool(mean.isfinite().all()), spec
            assert float(mean.abs().max()) <= 60 * float(tiny.abs().max()), spec
            assert bool(residuals.isfinite().all()), spec


def test_a_value_that_is_not_finite_reaches_every_rank() -> None:
    for spec in ALL:
        for bad in (float("nan"), float("inf"), -float("inf")):
            for ranks in (1, 2, 3):
                given = gradients(ranks, 2100)
                given[ranks - 1, 1050] = bad
                mean, _ = average_vectors(spec, list(given), feedback=True)
                assert not mean[1050].isfinite(), (spec, bad)


def test_fp16_overflow_is_infinite_in_the_mean_and_not_in_residuals() -> None:
    given = torch.tensor([[1e6, -1e6, 60_000.0, 1.0], [0.0, 0.0, 60_000.0, 1.0]])
    mean, residuals = average_vectors("fp16", list(given), feedback=True)
    assert mean.tolist() == [float("inf"), -float("inf"), 60_000.0, 1.0]
    assert bool(residuals.isfinite().all())


def test_casts_average_several_tensors() -> None:
    tensors = [[torch.ones(2, 3) * rank, torch.ones(5), torch.ones(0)] for rank in range(3)]
    for spec in CASTS:
        means, _ = average(spec, tensors)
        torch.testing.assert_close(means[1][0], torch.ones(2, 3), rtol=0.01, atol=0)
        torch.testing.assert_close(means[2][1], torch.ones(5), rtol=0.01, atol=0)


def test_a_family_without_a_codec_is_an_error() -> None:
    assert make_codec("minmax:3").spec.parameter == 3
    with pytest.raises(CompressionError, match="codec is 'zip', needs one of none, bf16"):
        make_codec("zip")


def test_corrupted_payloads_raise_nothing_and_keep_ranks_equal() -> None:
    """Any bytes are codes and numbers: a rank that sends nonsense cannot make another one fail."""

    def corrupt(rank: int, request: Request) -> None:
        if rank == 1 and isinstance(request, (AllToAll, AllGather)):
            request.sent.random_(0, 256, generator=random)

    for spec in (*SUMMED, "sign"):
        random = torch.Generator().manual_seed(1)
        tensors = [[each] for each in gradients(3, 5000)]
        means, _ = average(spec, tensors, feedback=True, observe=corrupt)
        intact, _ = average(spec, tensors, feedback=True)
        for (mean,) in means[1:]:
            assert torch.equal(means[0][0].view(torch.int32), mean.view(torch.int32)), spec
        assert not torch.equal(means[0][0], intact[0][0]), spec
