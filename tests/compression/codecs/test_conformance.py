"""The contract of `Codec.average`, for every family."""

import hashlib

import pytest
import torch
from torch import Tensor

from headrace.compression.codecs.requests import Context, Request, run_together
from headrace.compression.codecs.table import CODECS, make_codec
from headrace.compression.families import FAMILIES
from tests.compression.codecs.group import average

ADD_UP = sorted(CODECS.keys() - {"bf16", "fp16", "sign", "dgc"})
"""Families whose residuals and mean add up to what was given: no vote, momentum, rounded sums."""
SHAPES = ([(40, 50)], [(3, 5)], [(1, 1)], [(70, 20), (9, 100), (70, 20)])


def given(family: str, ranks: int, shapes: list[tuple[int, int]]) -> list[list[Tensor]]:
    """Return tensors of every rank: matrices, or the first as a vector."""
    random = torch.Generator().manual_seed(ranks)
    if not FAMILIES[family].matrices:
        shapes = shapes[:1]
    tensors = [[torch.randn(shape, generator=random) for shape in shapes] for _ in range(ranks)]
    if FAMILIES[family].matrices:
        return tensors
    return [[tensor.flatten() for tensor in own] for own in tensors]


@pytest.mark.parametrize("family", CODECS)
def test_means_are_equal_bit_by_bit_on_all_ranks(family: str) -> None:
    for ranks in (1, 2, 3, 5):
        for shapes in SHAPES:
            tensors = given(family, ranks, shapes)
            states = [[{} for _ in own] for own in tensors]
            for step in range(3):
                means, tensors = average(
                    family, tensors, feedback=FAMILIES[family].feedback, step=step, states=states
                )
                for other in means[1:]:
                    for first, own in zip(means[0], other, strict=True):
                        assert torch.equal(first.view(torch.int32), own.view(torch.int32))
                assert all(bool(mean.isfinite().all()) for mean in means[0])


def test_seeds_are_the_same_in_every_process() -> None:
    """They were of Python's `hash`, which other builds compute in another way."""
    context = Context(rank=1, ranks=2, step=3, seed=7)
    digest = hashlib.blake2b(b"(7, 3, 2)", digest_size=8).digest()
    own = int.from_bytes(digest, "little") // 2
    assert context.generator(own=True).initial_seed() == own == 6715699689927941059
    assert context.generator(own=False).initial_seed() != own
    shared = Context(rank=0, ranks=2, step=3, seed=7).generator(own=False)
    assert shared.initial_seed() == context.generator(own=False).initial_seed()


@pytest.mark.parametrize("family", ADD_UP)
def test_residuals_and_the_mean_add_up_to_the_input(family: str) -> None:
    for ranks in (1, 2, 3, 5):
        for shapes in SHAPES:
            tensors = given(family, ranks, shapes)
            means, residuals = average(family, tensors, feedback=True)
            for index, mean in enumerate(means[0]):
                total = sum((own[index] for own in residuals), ranks * mean)
                before = sum((own[index] for own in tensors[1:]), tensors[0][index])
                torch.testing.assert_close(total, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", CODECS)
def test_means_are_not_written_before_the_last_exchange_with_feedback(family: str) -> None:
    """A failed step was undone in all but its residuals, whose memory the mean had overwritten."""
    tensors = given(family, 3, SHAPES[0])
    means = [[torch.full_like(tensor, 0.125) for tensor in own] for own in tensors]
    requests = 0

    def untouched(_rank: int, _request: Request) -> None:
        nonlocal requests
        requests += 1
        assert all(bool((mean == 0.125).all()) for own in means for mean in own)

    codec = make_codec(family)
    run_together(
        [
            codec.average(tensors[rank], means[rank], [{}], Context(rank=rank, ranks=3))
            for rank in range(3)
        ],
        untouched,
    )
    assert requests
    assert not any(bool((mean == 0.125).all()) for own in means for mean in own)


@pytest.mark.parametrize("family", CODECS)
def test_means_may_be_written_over_the_input_without_feedback(family: str) -> None:
    tensors = given(family, 3, SHAPES[3])
    expected, _ = average(family, tensors)
    shared = [[tensor.clone() for tensor in own] for own in tensors]
    codec = make_codec(family)
    run_together(
        [
            codec.average(
                own,
                own,
                [{} for _ in own],
                Context(rank=rank, ranks=3, seed=7, feedback=False),
            )
            for rank, own in enumerate(shared)
        ]
    )
    for found, mean in zip(shared[1], expected[1], strict=True):
        assert torch.equal(found, mean)


@pytest.mark.parametrize("family", CODECS)
def test_zero_tiny_and_infinite_values_and_nan_raise_nothing(family: str) -> None:
    for feedback in (False, True):
        zeros = [
            [torch.zeros_like(tensor) for tensor in own] for own in given(family, 2, SHAPES[0])
        ]
        means, _ = average(family, zeros, feedback=feedback)
        assert not means[0][0].any()
        tiny = [[tensor * 1e-42 for tensor in own] for own in given(family, 2, SHAPES[0])]
        means, residuals = average(family, tiny, feedback=feedback)
        assert bool(means[0][0].isfinite().all())
        assert not feedback or bool(residuals[0][0].isfinite().all())
        for bad in (float("nan"), float("inf"), -float("inf")):
            tensors = given(family, 2, SHAPES[0])
            tensors[1][0].view(-1)[77] = bad
            (first,), (second,) = average(family, tensors, feedback=feedback)[0]
            assert torch.equal(first.nan_to_num(7), second.nan_to_num(7))
