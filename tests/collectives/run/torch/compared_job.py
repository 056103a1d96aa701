"""One of three ranks that make calls that do not match; those named on the command line ask for
DETAIL.

Prints as JSON: call -> the error that this rank got ("" for none), then what went wrong after it.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

RANKS = 3
WAIT = timedelta(seconds=60)
SUM = dist.ReduceOp.SUM


def t(elements: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(elements, dtype=dtype)


def other(at: int) -> bool:
    return dist.get_rank() == at


MISMATCHES: dict[str, Callable[[], object]] = {
    "a kind": lambda: dist.broadcast(t(), 0) if other(1) else dist.all_reduce(t()),
    "a kind that only sends": lambda: dist.reduce(t(), 0) if other(2) else dist.all_reduce(t()),
    "a barrier": lambda: dist.barrier() if other(0) else dist.all_reduce(t(1, torch.uint8)),
    "an asynchronous call": lambda: dist.all_reduce(t(4 + other(1)), async_op=True).wait(),
    "a shape of as many elements": lambda: dist.all_reduce(t(16).view(2, 8) if other(1) else t(16)),
    "a dtype": lambda: dist.all_reduce(t(dtype=torch.int32 if other(1) else torch.float32)),
    "an operator": lambda: dist.all_reduce(t(), dist.ReduceOp.MAX if other(1) else SUM),
    "a root": lambda: dist.reduce(t(), 1 if other(1) else 0),
    "a size of broadcast": lambda: dist.broadcast(t(4 + other(2)), 0),
    "a size of reduce": lambda: dist.reduce(t(4 + other(2)), 0),
    "a size of gather": lambda: dist.gather(
        t(4 + other(2)), [t() for _ in range(RANKS)] if other(0) else None
    ),
    "a size of scatter": lambda: dist.scatter(
        t(4 + other(2)), [t() for _ in range(RANKS)] if other(0) else None
    ),
    "a size of all_gather": lambda: dist.all_gather_into_tensor(
        t(RANKS * (4 + other(2))), t(4 + other(2))
    ),
    "a size of reduce_scatter": lambda: dist.reduce_scatter_tensor(
        t(4 + other(2)), t(RANKS * (4 + other(2)))
    ),
    "split sizes": lambda: dist.all_to_all_single(
        t(6), t(6), [2, 2, 2], [1, 2, 3] if other(1) else [2, 2, 2]
    ),
}


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def matching_calls() -> None:
    rank = dist.get_rank()
    sums = t()
    dist.all_reduce(sums)
    assert sums.tolist() == [RANKS] * 4
    # rank r sends r + 1 elements to each
    received = torch.empty(6)
    dist.all_to_all_single(received, t(3 * (rank + 1)) * rank, [1, 2, 3], [rank + 1] * RANKS)
    assert received.tolist() == [0, 1, 1, 2, 2, 2]
    blocks = [t(r + 1) for r in range(RANKS)]
    dist.reduce_scatter(blocks[rank], [t(r + 1) for r in range(RANKS)])
    assert blocks[rank].tolist() == [RANKS] * (rank + 1)
    gathered = [t(4) for _ in range(RANKS)] if rank == 0 else None
    dist.gather(t() * rank, gathered)
    dist.scatter(t(), gathered)
    dist.barrier()


def main() -> None:
    if os.environ["RANK"] in sys.argv[1:]:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group("headrace", timeout=WAIT)
    outcomes = {name: error_of(call) for name, call in MISMATCHES.items()}
    before = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    outcomes["afterwards"] = error_of(matching_calls)
    after = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    outcomes["numbers"] = f"{before} {after}"
    print("RESULTS " + json.dumps(outcomes), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
