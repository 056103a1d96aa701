"""TopK, MSTop-K, DGC and RandomK against slow references, odd values, and payloads that lie."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.compression.codecs.requests import AllGather, Context, Request, run_together
from headrace.compression.codecs.sparse import MOMENTUM, select_by_bisection, select_by_sample
from headrace.compression.codecs.table import make_codec
from headrace.compression.errors import PayloadError
from tests.compression.codecs.group import average

RANKS = (1, 2, 3, 5)
FAMILIES = ("topk", "mstopk", "dgc", "randomk")


def vectors(ranks: int, n: int, seed: int = 0) -> list[list[Tensor]]:
    random = torch.Generator().manual_seed(1000 * n + seed)
    return [[torch.randn(n, generator=random).pow(3)] for _ in range(ranks)]


def call(spec: str, given: list[list[Tensor]], **options) -> tuple[Tensor, list[Tensor]]:
    """Return (mean, residual of each rank); fails if the ranks' means differ in a bit."""
    means, residuals = average(spec, given, **options)
    for (mean,) in means:
        assert torch.equal(mean.view(torch.int32), means[0][0].view(torch.int32))
    return means[0][0], [own for (own,) in residuals]


def slow_topk(vector: np.ndarray, k: int) -> np.ndarray:
    kept = np.zeros_like(vector)
    for index in sorted(range(len(vector)), key=lambda i: -abs(vector[i]))[:k]:
        kept[index] = vector[index]
    return kept


def test_topk_is_the_mean_of_the_largest() -> None:
    for ranks in RANKS:
        for n, share, k in ((1, "1%", 1), (40, "10%", 4), (1001, "3%", 30), (64, "100%", 64)):
            given = vectors(ranks, n)
            mean, residuals = call(f"topk:{share}", given, feedback=True)
            kept = [slow_topk(own.numpy(), k) for (own,) in given]
            np.testing.assert_allclose(mean, sum(kept) / ranks, rtol=1e-6, atol=1e-6)
            for residual, (own,), part in zip(residuals, given, kept, strict=True):
                np.testing.assert_array_equal(residual, own.numpy() - part)


def test_mstopk_sends_k_elements_of_nearly_the_largest() -> None:
    for n, k in ((1, 1), (50, 7), (50, 50), (9000, 90), (300_000, 3000), (2_200_000, 100)):
        (vector,) = vectors(1, n)[0]
        found = select_by_bisection(vector, k, torch.Generator().manual_seed(n))
        assert found.shape == (k,)
        assert bool((found.diff() > 0).all())
        best = vector.abs().topk(k).values
        assert vector[found].abs().sum() >= 0.9999 * best.sum()
    for vector, k in ((torch.zeros(9000), 90), (torch.ones(9000), 90)):
        found = select_by_bisection(vector, k, torch.Generator().manual_seed(0))
        assert found.tolist() == list(range(k))
    few = torch.zeros(9000)
    few[[5, 8000]] = torch.tensor([1e-30, -math.inf])
    assert {5, 8000} < set(select_by_bisection(few, 90, torch.Generator()).tolist())


def test_dgc_sends_k_or_fewer_elements_above_a_threshold() -> None:
    counts = []
    for seed in range(8):
        (vector,) = vectors(1, 300_000, seed)[0]
        found = select_by_sample(vector, 3000, torch.Generator().manual_seed(seed))
        assert bool((found.diff() > 0).all())
        counts.append(len(found))
        left = torch.ones(len(vector), dtype=torch.bool)
        left[found] = False
        assert vector[left].abs().max() <= vector[found].abs().min()
    assert 2000 < min(counts) < 3000 == max(counts)
    assert len(select_by_sample(torch.zeros(9000), 90, torch.Generator())) == 0


def slow_dgc(gradients: list[np.ndarray], k: int, steps: int) -> tuple[list, list]:
    """Lin et al., Algorithm 4 without clipping: the means, and the unsent sums of every step."""
    velocity = [np.zeros_like(own[0]) for own in gradients]
    unsent = [np.zeros_like(own[0]) for own in gradients]
    means, sums = [], []
    for step in range(steps):
        total = np.zeros_like(unsent[0])
        for rank, own in enumerate(gradients):
            velocity[rank] = MOMENTUM * velocity[rank] + own[step]
            unsent[rank] = unsent[rank] + velocity[rank]
            sent = slow_topk(unsent[rank], k)
            total += sent
            unsent[rank] = np.where(sent != 0, 0, unsent[rank])
            velocity[rank] = np.where(sent != 0, 0, velocity[rank])
        means.append(total / len(gradients))
        sums.append([own.copy() for own in unsent])
    return means, sums


def test_dgc_is_the_reference_for_several_steps() -> None:
    """At so few elements the sample is the whole, so the threshold is exact."""
    ranks, n, k, steps = 3, 200, 10, 12
    gradients = [[own[0] for own in vectors(ranks, n, step)] for step in range(steps)]
    by_rank = [
        [gradients[step][rank].double().numpy() for step in range(steps)] for rank in range(ranks)
    ]
    means, sums = slow_dgc(by_rank, k, steps)
    states = [[{}] for _ in range(ranks)]
    residuals = [torch.zeros(n) for _ in range(ranks)]
    for step in range(steps):
        given = [[residual + own] for residual, own in zip(residuals, gradients[step], strict=True)]
        mean, residuals = call("dgc:5%", given, feedback=True, step=step, states=states)
        np.testing.assert_allclose(mean, means[step], atol=1e-4)
        for (state,), wanted in zip(states, sums[step], strict=True):
            np.testing.assert_allclose(state["unsent"], wanted, atol=1e-4)


def test_dgc_keeps_its_velocity_from_the_first_step_on_and_over_skipped_ones() -> None:
    """DGC lost the momentum of its first step, and after every step that a scaler skipped.

    The velocity was zero where the number of a step was not one more than the last one's: a job
    under a gradient scaler began anew at each of its skipped steps.
    """
    ((gradient,),), states = vectors(1, 100), [[{}]]
    residual = torch.zeros(100)
    for step in (1, 2, 3, 5, 9):
        velocity = gradient + residual - states[0][0].get("unsent", torch.zeros(100))
        given = [[gradient + residual]]
        _, (residual,) = call("dgc:5%", given, feedback=True, step=step, states=states)
        momentum = residual - states[0][0]["unsent"]
        expected = MOMENTUM * velocity
        expected[states[0][0]["unsent"] == 0] = 0
        assert expected.any()
        torch.testing.assert_close(momentum, expected, rtol=0, atol=1e-5)


def test_randomk_averages_the_same_elements_of_all_ranks() -> None:
    for ranks in RANKS:
        given = vectors(ranks, 1000)
        masks = []
        for step in range(3):
            mean, residuals = call("randomk:3%", given, feedback=True, step=step)
            mask = residuals[0] == 0
            assert int(mask.sum()) == 30
            wanted = sum(own for (own,) in given) / ranks
            torch.testing.assert_close(mean, torch.where(mask, wanted, 0))
            for residual, (own,) in zip(residuals, given, strict=True):
                assert torch.equal(residual, torch.where(mask, 0, own))
            masks.append(mask)
        assert not torch.equal(masks[0], masks[1])


def test_randomk_without_feedback_is_unbiased() -> None:
    given = [[torch.arange(1.0, 48)], [torch.full((47,), -3.0)]]
    calls = 1500
    total = torch.zeros(47)
    for step in range(calls):
        total += call("randomk:20%", given, step=step)[0]
    wanted = (given[0][0] + given[1][0]) / 2
    # of one element: value times a Bernoulli variable of p = 1/5 (or 1/6), divided by p
    deviation = wanted.abs() * math.sqrt(5 / calls)
    assert bool(((total / calls - wanted).abs() <= 5 * deviation + 1e-6).all())


@pytest.mark.parametrize("family", FAMILIES)
def test_residuals_and_mean_are_what_was_given(family: str) -> None:
    for wire in ("fp32", "bf16", "fp16"):
        for ranks in RANKS:
            given = vectors(ranks, 500)
            states = [[{}] for _ in range(ranks)]
            mean, residuals = call(f"{family}:5%+{wire}", given, feedback=True, states=states)
            total = sum(own for (own,) in given)
            if family == "dgc":  # whose residuals hold the next velocity, too
                residuals = [state["unsent"] for (state,) in states]
            # RandomK's sums of 16 bits round on the way; all others are summed in float32
            error = (
                {"fp32": 1e-6, "bf16": 2**-7, "fp16": 2**-10}[wire] if family == "randomk" else 1e-6
            )
            found = sum(residuals) + ranks * mean
            assert float((found - total).norm()) <= error * ranks * float(total.norm())
            assert sum(float(own.norm()) for own in residuals) > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_output_converges_to_a_constant_gradient(family: str) -> None:
    ranks, n, steps = 3, 300, 200
    constant = vectors(ranks, n)
    wanted = sum(own for (own,) in constant) / ranks
    states = [[{}] for _ in range(ranks)]
    residuals = [torch.zeros(n) for _ in range(ranks)]
    total = torch.zeros(n)
    for step in range(steps):
        given = [[residual + own] for residual, (own,) in zip(residuals, constant, strict=True)]
        mean, residuals = call(f"{family}:10%", given, feedback=True, step=step, states=states)
        total += mean
    if family == "dgc":  # velocity is lost where an element is sent: less than 1 / (1 - momentum)
        ratio = (total / steps)[wanted != 0] / wanted[wanted != 0]
        assert 1 <= float(ratio.median()) <= 1 / (1 - MOMENTUM)
    else:
        assert float((total / steps - wanted).norm()) < 0.1 * float(wanted.norm())
    assert all(
        float(own.norm()) < 100 / (1 - MOMENTUM) * float(fixed.norm())
        for own, (fixed,) in zip(residuals, constant, strict=True)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_values(family: str) -> None:
    for wire in ("fp32", "bf16", "fp16"):
        spec = f"{family}:10%+{wire}"
        mean, residuals = call(spec, [[torch.zeros(50)], [torch.zeros(50)]], feedback=True)
        assert not mean.any()
        assert not any(own.any() for own in residuals)
        tiny = [[torch.full((50,), 1e-42)], [torch.full((50,), 1e-42)]]
        mean, residuals = call(spec, tiny, feedback=True)
        assert bool(mean.isfinite().all())
        huge = [[torch.full((50,), 1e30)], [torch.full((50,), 1e30)]]
        mean, residuals = call(spec, huge, feedback=True)
        assert bool(mean.isfinite().all())
        assert all(bool(own.isfinite().all()) for own in residuals)
    assert call(f"{family}:10%", [[torch.zeros(0)]])[0].shape == (0,)
    if family == "randomk":  # the Averager keeps what is not finite from codecs
        return
    for bad in (math.nan, math.inf):
        given = vectors(2, 500)
        given[1][0][77] = bad
        mean, _ = call(f"{family}:2%", given)
        assert not bool(mean[77].isfinite())
        assert int((~mean.isfinite()).sum()) == 1


def test_ranks_are_equal_bit_by_bit_for_twenty_steps() -> None:
    for family in FAMILIES:
        for wire in ("fp32", "bf16"):
            states = [[{}] for _ in range(5)]
            residuals = [torch.zeros(700) for _ in range(5)]
            for step in range(20):
                given = [
                    [residual + own]
                    for residual, (own,) in zip(residuals, vectors(5, 700, step), strict=True)
                ]
                _, residuals = call(
                    f"{family}:5%+{wire}", given, feedback=True, step=step, states=states
                )


def test_the_mean_can_lie_where_the_vector_is() -> None:
    for family in FAMILIES:
        given = vectors(2, 300)
        wanted, _ = call(f"{family}:5%", given)
        run_together(
            [
                make_codec(f"{family}:5%").average(
                    own, own, [{}], Context(rank=rank, ranks=2, seed=7, feedback=False)
                )
                for rank, own in enumerate(given)
            ]
        )
        assert all(torch.equal(own, wanted) for (own,) in given)


LIES = {
    "more entries than there is room for": (0, 0, 11, "rank 1 sent 11 entries, needs 0 to 10"),
    "a negative number of entries": (0, 0, -1, "rank 1 sent -1 entries"),
    "a negative index": (2, 0, -7, "rank 1 sent indices that do not ascend from 0 to 99"),
    "an index behind the end": (2, 9, 100, "rank 1 sent indices that do not ascend"),
    "the same index twice": (2, 4, None, "rank 1 sent indices that do not ascend"),
    "an index that wraps around": (2, 9, 2**31 - 1, "rank 1 sent indices that do not ascend"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_payloads_are_refused(lie: str) -> None:
    first, offset, value, message = LIES[lie]

    def tamper(rank: int, request: Request) -> None:
        assert isinstance(request, AllGather)
        if rank == 1:
            words = request.sent.view(torch.int32)
            words[first + offset] = int(words[first + offset - 1]) if value is None else value

    for family in ("topk", "mstopk", "dgc"):
        states = [[{}] for _ in range(3)]
        given = vectors(3, 100)
        with pytest.raises(PayloadError, match=message):
            average(f"{family}:10%", given, feedback=True, states=states, observe=tamper)
