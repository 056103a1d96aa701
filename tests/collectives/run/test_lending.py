"""Buffers that ranks of one host read straight from each other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import headrace.torch
from headrace.collectives.demand import Collective
from headrace.collectives.run import lending
from headrace.collectives.run.choice import Chooser
from headrace.collectives.run.executor import Executor
from tests.conformance.groups import each, group

COLLECTIVES = (
    Collective.ALLREDUCE,
    Collective.ALLGATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.BROADCAST,
)


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_results_are_those_of_other_memory(collective: Collective, *, one_host: bool) -> None:
    """Several calls on the same buffers, which every rank refills at once."""
    ranks, block = 3, 40_003
    choice = Chooser(ranks, one_host=one_host).choose(collective, ranks * block * 4)
    demand, sides = choice.program.demand, 2 if collective is Collective.ALL_TO_ALL else 1
    each_block = ranks * block // demand.blocks

    def results(make: Callable[[tuple[int, int]], np.ndarray]) -> list[np.ndarray]:
        found: list[list[np.ndarray]] = [[] for _ in range(ranks)]

        def one(executor: Executor) -> None:
            random = np.random.default_rng(executor.rank)
            data = make((sides, ranks * block))
            loaded = executor.load(choice.program, choice.proof)
            rows = [
                (side.ctypes.data, each_block, demand.blocks, demand.chunks) for side in list(data)
            ]
            call = executor.prepare(loaded, rows, dtype="float32")
            for _ in range(5):
                data[:] = random.integers(0, 1000, data.shape)
                executor.run(call)
                found[executor.rank].append(data.copy())

        with group(ranks) as executors:
            each(executors, one)
        return [np.stack(kept) for kept in found]

    plain = results(lambda shape: np.empty(shape, np.float32))
    for mine, other in zip(results(lending.empty), plain, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_memory_comes_back_and_is_used_again() -> None:
    first = lending.empty((300, 1000))
    first[:] = 3.0
    address, view = first.ctypes.data, first[10:20]
    del first
    other = lending.empty(300_000)
    assert other.ctypes.data != address, "a view still refers to it"
    assert (view == 3.0).all()
    del view
    assert lending.empty(290_000).ctypes.data == address


def test_a_tensor_has_the_shape_and_type_that_were_asked_for() -> None:
    tensor = headrace.torch.empty(3, 5, dtype=torch.bfloat16)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((3, 5), torch.bfloat16, True)
    tensor.fill_(2.0)
    assert tensor.sum() == 30.0
    assert headrace.torch.empty(4).dtype is torch.float32
