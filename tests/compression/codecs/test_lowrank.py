"""PowerSGD and ATOMO against slow references, and what every codec must keep."""

import math

import numpy as np
import pytest
import torch

from headrace.compression.codecs.lowrank import (
    Atomo,
    PowerSGD,
    orthonormal,
    sampling_chances,
    spectral_factors,
)
from headrace.compression.codecs.requests import AllReduce, Context, run_together
from headrace.compression.families import CodecSpec
from headrace.compression.policy import low_rank

SHAPES = ((24, 40), (24, 40), (7, 50), (3, 3), (64, 1), (30, 12))
RANKS = (1, 2, 3, 5)


def gradients(ranks, seed=0, scale=1.0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [[scale * torch.randn(s, generator=generator) for s in shapes] for _ in range(ranks)]


def call(codec, given, states, *, step=0, feedback=True, observe=None):
    """Average in place; return each rank's means. `given` then holds the residuals."""
    means = [[torch.full_like(matrix, math.nan) for matrix in own] for own in given]
    run_together(
        [
            codec.average(
                given[rank],
                means[rank],
                states[rank],
                Context(rank=rank, ranks=len(given), step=step, seed=7, feedback=feedback),
            )
            for rank in range(len(given))
        ],
        observe,
    )
    return means


def empty_states(ranks, shapes=SHAPES):
    return [[{} for _ in shapes] for _ in range(ranks)]


def powersgd(text):
    return PowerSGD(CodecSpec.parse(text))


def atomo(text):
    return Atomo(CodecSpec.parse(text))


def equal_bits(means):
    return all(
        torch.equal(first.view(torch.int32), other.view(torch.int32))
        for own in means[1:]
        for first, other in zip(means[0], own, strict=True)
    )


def reference_powersgd(matrices, right, ranks):
    """Algorithm 1 and 2 of Vogels et al. in float64: (mean, residuals, next right factor)."""
    if matrices[0].shape[0] > matrices[0].shape[1]:
        mean, residuals, following = reference_powersgd([m.T for m in matrices], right, ranks)
        return mean.T, [residual.T for residual in residuals], following
    matrices = [np.asarray(matrix, dtype=np.float64) for matrix in matrices]
    left, _ = np.linalg.qr(sum(matrix @ right for matrix in matrices))
    own = [matrix.T @ left for matrix in matrices]
    following = sum(own) / ranks
    return (
        left @ following.T,
        [m - left @ q.T for m, q in zip(matrices, own, strict=True)],
        following,
    )


@pytest.mark.parametrize("ranks", RANKS)
def test_powersgd_is_the_reference_for_several_steps(ranks):
    codec, states = powersgd("powersgd:2"), empty_states(ranks)
    call(codec, gradients(ranks, 99), states)  # sets the right factors
    for step in range(3):
        given = gradients(ranks, step)
        before = [[matrix.clone() for matrix in own] for own in given]
        rights = [dict(state) and {k: v.clone() for k, v in state.items()} for state in states[0]]
        means = call(codec, given, states, step=step + 1)
        assert equal_bits(means)
        for index, shape in enumerate(SHAPES):
            matrices = [own[index].numpy() for own in before]
            if not low_rank(*shape, 2):
                np.testing.assert_allclose(means[0][index], sum(matrices) / ranks, atol=1e-6)
                assert not any(own[index].any() for own in given)
                continue
            mean, residuals, right = reference_powersgd(
                matrices, rights[index]["right"].T.numpy().astype(np.float64), ranks
            )
            np.testing.assert_allclose(means[0][index], mean, atol=2e-5)
            for own, residual in zip(given, residuals, strict=True):
                np.testing.assert_allclose(own[index], residual, atol=2e-5)
            kept = states[0][index]["right"].T.numpy()
            np.testing.assert_allclose(
                np.abs(kept), np.abs(right / np.linalg.norm(right, axis=0)), atol=1e-4
            )


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
def test_powersgd_residuals_and_mean_are_what_was_given(wire):
    for ranks in RANKS:
        for rank in (1, 4, 256):
            codec, states = powersgd(f"powersgd:{rank}+{wire}"), empty_states(ranks)
            given = gradients(ranks, rank)
            sums = [sum(own[index] for own in given) for index in range(len(SHAPES))]
            means = call(codec, given, states)
            # Sums of 16 bits round on the way, which no rank knows: once for each rank added.
            error = {"fp32": 2e-6, "bf16": 2**-7, "fp16": 2**-10}[wire] * ranks
            for index, total in enumerate(sums):
                found = sum(own[index] for own in given) + ranks * means[0][index]
                assert (found - total).norm() <= error * total.norm() + 1e-6


def test_powersgd_residuals_stay_bounded_and_the_output_converges():
    """Ranks of different constant gradients: the residuals must not collect the differences."""
    ranks, steps = 3, 200
    codec, states = powersgd("powersgd:2"), empty_states(ranks)
    constant = gradients(ranks)
    residuals = [[torch.zeros_like(matrix) for matrix in own] for own in constant]
    totals = [torch.zeros(shape) for shape in SHAPES]
    for step in range(steps):
        for own, fixed in zip(residuals, constant, strict=True):
            for residual, gradient in zip(own, fixed, strict=True):
                residual += gradient
        means = call(codec, residuals, states, step=step)
        for total, mean in zip(totals, means[0], strict=True):
            total += mean
    for index, total in enumerate(totals):
        wanted = sum(own[index] for own in constant) / ranks
        assert (total / steps - wanted).norm() < 0.1 * wanted.norm()
        for own, fixed in zip(residuals, constant, strict=True):
            assert own[index].norm() < 12 * fixed[index].norm()


def test_powersgd_warm_start_finds_the_best_factors():
    torch.manual_seed(0)
    matrix = torch.randn(60, 3) @ torch.randn(3, 90) + 0.05 * torch.randn(60, 90)
    best = torch.linalg.svdvals(matrix)[3:].norm()
    codec, states = powersgd("powersgd:3"), [[{}]]
    errors = []
    for step in range(6):
        mean = call(codec, [[matrix.clone()]], states, step=step, feedback=False)[0][0]
        errors.append(float((mean - matrix).norm()))
    assert errors[-1] <= 1.01 * best < errors[0]


def test_powersgd_warm_start_survives_another_rank():
    torch.manual_seed(0)
    matrix = torch.randn(60, 4) @ torch.randn(4, 90)
    states = [[{}]]
    for step in range(3):
        call(powersgd("powersgd:4"), [[matrix.clone()]], states, step=step)
    kept = states[0][0]["right"].clone()
    for rank in (2, 4, 6):
        call(powersgd(f"powersgd:{rank}"), [[matrix.clone()]], states, step=rank)
        found = states[0][0]["right"]
        assert found.shape == (max(4, rank), 90)
        angles = torch.linalg.svdvals(kept @ torch.linalg.qr(found[:rank].T)[0])
        assert angles[: min(rank, 4)].min() > 0.3  # the same subspace, at any rank
    assert torch.allclose(torch.linalg.vector_norm(found, dim=1), torch.ones(6), atol=1e-5)


@pytest.mark.parametrize("kind", ["zero", "tiny", "huge", "one", "alike"])
def test_powersgd_survives_deficient_gradients(kind):
    ranks = 3
    codec, states = powersgd("powersgd:4"), empty_states(ranks)
    for step in range(4):
        given = gradients(ranks, step)
        for own in given:
            for matrix in own:
                if kind == "zero":
                    matrix.zero_()
                elif kind == "tiny":
                    matrix.mul_(1e-36)
                elif kind == "huge":
                    matrix.mul_(1e30)
                elif kind == "one":
                    matrix[1:] = 0
                else:
                    matrix[:] = matrix[0]
        before = [sum(own[index] for own in given) / ranks for index in range(len(SHAPES))]
        means = call(codec, given, states, step=step)
        assert equal_bits(means)
        assert all(matrix.isfinite().all() for own in (*means, *given) for matrix in own)
        if kind in ("zero", "one"):  # their rank is that of the factors
            for mean, wanted in zip(means[0], before, strict=True):
                torch.testing.assert_close(mean, wanted, atol=1e-5, rtol=1e-4)
    call(codec, gradients(ranks, 5), states, step=5)
    given = gradients(ranks, 5)
    means = call(codec, given, states, step=6)
    assert all(matrix.isfinite().all() for own in (*means, *given) for matrix in own)
    assert all(residual.norm() > 0 for residual in (given[0][0], given[0][2]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_powersgd_passes_on_what_is_not_finite_and_forgets_it(bad):
    ranks = 2
    codec, states = powersgd("powersgd:2"), empty_states(ranks)
    call(codec, gradients(ranks), states)
    kept = [[state["right"].clone() for state in own if state] for own in states]
    given = gradients(ranks, 1)
    given[1][0][3, 4] = bad
    means = call(codec, given, states, step=1)
    assert all(not own[0].isfinite().all() for own in means)
    assert all(own[1].isfinite().all() for own in means)
    for own, former in zip(states, kept, strict=True):
        found = [state["right"] for state in own if state]
        assert torch.equal(found[0], former[0])
        assert not torch.equal(found[1], former[1])
        assert all(right.isfinite().all() for right in found)


def test_powersgd_ranks_are_equal_bit_by_bit_for_twenty_steps():
    ranks = 3
    for text in ("powersgd:1", "powersgd:4", "powersgd:4+bf16"):
        codec, states = powersgd(text), empty_states(ranks)
        for step in range(20):
            assert equal_bits(call(codec, gradients(ranks, step), states, step=step))


def test_powersgd_does_not_depend_on_where_gradients_lie_in_memory():
    """Rank 1 rounded by the alignment of DDP's buckets, so that a resumed job differed."""
    for text in ("powersgd:1", "powersgd:2"):
        found = []
        for offset in range(4):
            storage = torch.zeros(400 * 301 + offset)[offset:].view(400, 301)
            storage.copy_(torch.randn(400, 301, generator=torch.Generator().manual_seed(1)))
            given, states = [[storage]], [[{}]]
            means = call(powersgd(text), given, states)
            found.append([means[0][0], storage, states[0][0]["right"]])
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True)), text


def test_powersgd_asks_for_two_sums_of_its_factors():
    asked = []
    codec = powersgd("powersgd:2+bf16")
    for _ in range(2):
        asked.clear()
        call(
            codec,
            gradients(2),
            empty_states(2),
            observe=lambda rank, request: asked.append((rank, request)),
        )
    assert all(isinstance(request, AllReduce) for _, request in asked)
    coded = [shape for shape in SHAPES if low_rank(*shape, 2)]
    uncoded = [shape for shape in SHAPES if shape not in coded]
    first = sum(2 * min(shape) for shape in coded) + sum(math.prod(shape) for shape in uncoded)
    second = sum(2 * max(shape) for shape in coded)
    assert uncoded
    assert [(rank, r.payload_bytes) for rank, r in asked] == [
        (0, 2 * first),
        (1, 2 * first),
        (0, 2 * second),
        (1, 2 * second),
    ]


def test_powersgd_mean_can_lie_where_the_gradient_is():
    given, states = gradients(2), empty_states(2)
    apart = call(powersgd("powersgd:2"), gradients(2), empty_states(2), feedback=False)
    run_together(
        [
            powersgd("powersgd:2").average(
                given[rank],
                given[rank],
                states[rank],
                Context(rank=rank, ranks=2, seed=7, feedback=False),
            )
            for rank in range(2)
        ]
    )
    for own, wanted in zip(given, apart, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, wanted, strict=True))


def test_orthonormal_columns_of_any_input():
    torch.manual_seed(0)
    for n, r in ((5, 5), (200, 4), (64, 1), (30, 12)):
        full = torch.randn(3, n, r)
        one = torch.randn(1, n, 1).expand(1, n, r)
        for matrices in (full, 1e-30 * full, 1e30 * full, one, 0 * full, torch.cat([full, one])):
            found = orthonormal(matrices.clone())
            eye = torch.eye(r).expand(len(matrices), r, r)
            torch.testing.assert_close(found.mT @ found, eye, atol=1e-5, rtol=0)
            if matrices is full:
                torch.testing.assert_close(found @ (found.mT @ full), full, atol=1e-4, rtol=1e-4)


def slow_chances(values, count):
    """Algorithm 1 of ATOMO: the largest values are certain until the rest fits."""
    chances, values, left = {}, dict(enumerate(values)), count
    while values:
        index = max(values, key=values.get)
        if left * values[index] < sum(values.values()):
            return {**chances, **{i: left * v / sum(values.values()) for i, v in values.items()}}
        chances[index] = 1.0
        del values[index]
        left -= 1
    return chances


def test_chances_are_the_reference():
    random = np.random.default_rng(0)
    for count in (1, 2, 5):
        for values in (np.ones(9), random.random(20) + 0.01, np.geomspace(1, 0.01, 12)):
            found = sampling_chances(torch.tensor(values), count)
            wanted = slow_chances(values, count)
            np.testing.assert_allclose(found, [wanted[i] for i in range(len(values))], rtol=1e-9)
            assert found.sum() == pytest.approx(count)
    assert sampling_chances(torch.zeros(4), 2).tolist() == [0.5] * 4


def test_atomo_is_unbiased_with_two_singular_values_of_many():
    matrix = gradients(1, 3, shapes=[(12, 30)])[0][0]
    calls, total = 1500, torch.zeros(12, 30, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    for _ in range(calls):
        left, right = spectral_factors(matrix, 2, random)
        total += left.double() @ right.double().T
    values = torch.linalg.svdvals(matrix)
    chances = sampling_chances(values, 2)
    # the variance of the sum in all: of every value, its square times (1 - p) / p
    deviation = math.sqrt(float((values.square() * (1 - chances) / chances).sum()) / calls)
    assert 0 < float((total / calls - matrix).norm()) < 2 * deviation


def test_atomo_averages_factors_of_all_ranks():
    for ranks in RANKS:
        for wire in ("fp32", "bf16"):
            codec, asked = atomo(f"atomo:2+{wire}"), []
            given = gradients(ranks, ranks)
            before = [[matrix.clone() for matrix in own] for own in given]
            means = call(codec, given, empty_states(ranks), observe=lambda *a, x=asked: x.append(a))
            assert equal_bits(means)
            assert len(asked) == 2 * ranks
            for index, shape in enumerate(SHAPES):
                matrices = [own[index].numpy() for own in before]
                wanted = np.zeros(shape)
                for matrix in matrices:  # with feedback: the largest singular values
                    u, s, v = np.linalg.svd(matrix, full_matrices=False)
                    keep = 2 if low_rank(*shape, 2) else len(s)
                    wanted += u[:, :keep] * s[:keep] @ v[:keep] / ranks
                error = 1e-4 if wire == "fp32" else 0.05
                np.testing.assert_allclose(means[0][index], wanted, atol=error)
                found = sum(own[index] for own in given) + ranks * means[0][index]
                bound = error * np.linalg.norm(sum(matrices)) + 1e-5
                assert np.linalg.norm(found.numpy() - sum(matrices)) < bound


def test_atomo_survives_odd_gradients():
    ranks = 2
    for factor in (0.0, 1e-36, 1e30, math.nan, math.inf):
        for feedback in (False, True):
            given = [[factor * matrix for matrix in own] for own in gradients(ranks)]
            means = call(atomo("atomo:2"), given, empty_states(ranks), feedback=feedback)
            assert equal_bits(means)
            finite = math.isfinite(factor)
            assert all(bool(mean.isfinite().all()) == finite for mean in means[0])
            if not factor:
                assert not any(mean.any() for mean in means[0])
    one = torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 41))  # of rank 1
    mean = call(atomo("atomo:1"), [[one.clone()]], [[{}]])[0][0]
    torch.testing.assert_close(mean, one, rtol=0.02, atol=1)


@pytest.mark.parametrize("feedback", [True, False])
def test_autocast_does_not_round_factors(feedback):
    """A backward pass within autocast had factors of rank 1, and of atomo, in bfloat16."""
    for codec in (powersgd("powersgd:1"), atomo("atomo:2")):
        means = []
        for enabled in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                means += call(codec, gradients(2), empty_states(2), feedback=feedback)
        assert equal_bits(means)
