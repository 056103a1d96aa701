"""Buffers that ranks of one host read straight from each other."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.torch
from headrace._native import DataType
from headrace.collectives.demand import Collective
from headrace.collectives.run.choose import Chooser
from headrace.errors import InputError
from headrace.executor import Executor, empty_shared
from tests.conformance.groups import each, group
from tests.conformance.launch import outputs, ranks

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
            call = executor.prepare(loaded, rows, dtype=DataType.float32)
            for _ in range(5):
                data[:] = random.integers(0, 1000, data.shape)
                executor.run(call)
                found[executor.rank].append(data.copy())

        with group(ranks) as executors:
            each(executors, one)
        return [np.stack(kept) for kept in found]

    plain = results(lambda shape: np.empty(shape, np.float32))
    for mine, other in zip(results(empty_shared), plain, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_memory_comes_back_and_is_used_again() -> None:
    first = empty_shared((300, 1000))
    first[:] = 3.0
    address, view = first.ctypes.data, first[10:20]
    del first
    other = empty_shared(300_000)
    assert other.ctypes.data != address, "a view still refers to it"
    assert (view == 3.0).all()
    del view
    assert empty_shared(290_000).ctypes.data == address


def test_a_tensor_has_the_shape_and_type_that_were_asked_for() -> None:
    tensor = headrace.torch.empty(3, 5, dtype=torch.bfloat16)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((3, 5), torch.bfloat16, True)
    tensor.fill_(2.0)
    assert tensor.sum() == 30.0
    assert headrace.torch.empty(4).dtype is torch.float32


def shared_mappings() -> tuple[int, int]:
    """Number of shared regions mapped in this process, and their bytes in use."""
    count = used = 0
    with Path("/proc/self/smaps").open() as lines:
        ours = False
        for line in lines:
            if "-" in line.split()[0]:
                ours = "memfd:headrace" in line
                count += ours
            elif ours and line.startswith("Rss:"):
                used += int(line.split()[1]) << 10
    return count, used


def test_memory_of_tensors_that_are_gone_is_given_back() -> None:
    """It stayed with the process for ever, where only a tensor of about its size used it again.

    Descriptors and mappings grew with every new size, here and at every rank of the host.
    """
    count = 3
    choice = Chooser(count, one_host=True).choose(Collective.ALLREDUCE, 1 << 20)
    chunks = choice.program.demand.chunks
    seen: list[tuple[int, int, int]] = []

    def one(executor: Executor) -> None:
        loaded = executor.load(choice.program, choice.proof)
        for turn in range(1, 121):
            elements = chunks * count * 1000 * turn
            data = empty_shared(elements)
            data[:] = executor.rank
            rows = [(data.ctypes.data, elements, 1, chunks)]
            executor.run(executor.prepare(loaded, rows, dtype=DataType.float32))
            assert data[0] == data[-1] == sum(range(count))
            del data
            if executor.rank == 0 and turn % 20 == 0:
                seen.append((*shared_mappings(), len(list(Path("/proc/self/fd").iterdir()))))

    with group(count) as executors:
        each(executors, one)
    # of every rank: what is kept for later, and what peers have not let go of since the last call
    for mappings, used, descriptors in seen:
        assert mappings < 700, seen
        assert used < 512 << 20, seen
        assert descriptors < 250, seen


JOB = """
import os, sys, torch, torch.distributed as dist, headrace.torch
from datetime import timedelta
dist.init_process_group("headrace", timeout=timedelta(seconds=40))
store = dist.distributed_c10d._get_default_store()
rank = dist.get_rank()
tensor = headrace.torch.empty(300_000)
tensor.fill_(rank + 1.0)
if rank == 1:
    store.wait(["begun"], timedelta(seconds=30))
work = dist.all_reduce(tensor, async_op=True)
address = tensor.data_ptr()
if rank == 0:
    del tensor
    other = headrace.torch.empty(300_000).fill_(9.0)
    assert other.data_ptr() != address, "the call still reads and writes it"
    store.set("begun", "")
work.wait()
[result] = work.get_future().value()
assert result.data_ptr() == address and result.unique().tolist() == [3.0]
dist.barrier()
dist.destroy_process_group()
"""


def test_memory_of_a_pending_call_is_not_given_to_others(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with ranks(2, script) as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts


@pytest.mark.parametrize("size", [(3, 4), ((3, 4),), ([3, 4],), (torch.Size([3, 4]),), ((),), (0,)])
def test_sizes_are_those_of_torch_empty(size: tuple[Any, ...]) -> None:
    """One sequence of sizes was an error, or a tensor of another shape."""
    tensor = headrace.torch.empty(*size, dtype=torch.int16)
    assert tensor.shape == torch.empty(*size).shape
    assert tensor.dtype is torch.int16
    assert headrace.torch.empty(np.int64(3), torch.tensor(2)).shape == (3, 2)


@pytest.mark.parametrize("size", [(-1,), (0, -2), (1 << 62,)])
def test_impossible_sizes_are_refused(size: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=re.escape(f"headrace.torch.empty{size}: ")):
        headrace.torch.empty(*size)
    with pytest.raises(InputError, match=re.escape(f"is to have shape {size}")):
        empty_shared(size)


def test_extents_of_arrays_are_any_integers() -> None:
    assert empty_shared(np.int64(3)).shape == empty_shared([3]).shape == (3,)
    with pytest.raises(InputError, match="less than 2"):  # their product was taken modulo 2^64
        empty_shared((1 << 32, 1 << 32))
