"""Mistakes, what headrace adds to torch's interface, and what its profiler sees."""

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.conformance.sample.checks import (
    SIZES,
    check,
    everyone,
    made,
    make,
    me,
    raises,
    slow,
)


@check
def mistakes_get_clear_errors() -> None:
    n = len(everyone())
    with raises(ValueError, "sparse", "dense"):
        dist.broadcast(torch.eye(3).to_sparse(), 0)
    with raises(ValueError, "meta", "CPU"):
        dist.broadcast(torch.empty(3, device="meta"), 0)
    with raises(ValueError, "PREMUL_SUM", "int64"):
        dist.all_reduce(torch.ones(3, dtype=torch.int64), dist._make_nccl_premul_sum(2.0))
    with raises(ValueError, "PREMUL_SUM", "float8"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e5m2), dist._make_nccl_premul_sum(2.0))
    with raises(ValueError, "float8_e8m0fnu"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e8m0fnu))
    with raises(ValueError, "float32"):
        dist.all_reduce(torch.ones(3), ReduceOp.BAND)
    with raises(ValueError, "one per rank"):
        dist.all_gather([torch.ones(3)] * (n + 1), torch.ones(3))
    with raises(ValueError, "elements"):
        dist.all_gather_into_tensor(torch.empty(3 * n + 1), torch.ones(3))
    with raises(ValueError, "dtype"):
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * n, dtype=torch.float64))
    with raises(ValueError, "add up to"):
        dist.all_to_all_single(torch.empty(n), torch.ones(n), [1] * n, [2] * n)
    dist.all_reduce(torch.ones(1))  # and none of them broke the group


@check
def lengths_that_only_the_sender_knows() -> None:
    from headrace.collectives.run.torch.extensions import all_gather_variable, all_to_all_variable

    n, limit = len(everyone()), 3 * len(everyone())
    blocks = all_gather_variable(torch.full((3 * me(), 2), float(me())), limit)
    for rank, block in enumerate(blocks):
        assert torch.equal(block, torch.full((3 * rank, 2), float(rank)))
    sent = [torch.full((me() + dst,), 10 * me() + dst) for dst in everyone()]
    for src, block in enumerate(all_to_all_variable(sent, limit)):
        assert torch.equal(block, torch.full((src + me(),), 10 * src + me()))
    # one rank is over the limit: all are told, by the same call
    with raises(RuntimeError, f"rank {n - 1} has {limit} rows", f"limit is {limit - 1}"):
        all_gather_variable(torch.ones(limit if me() == n - 1 else 1), limit - 1)
    with raises(RuntimeError, "limit"):
        all_to_all_variable(
            [torch.ones(limit if me() == 0 and dst == n - 1 else 1) for dst in everyone()], 1
        )
    if n > 1:
        with raises(ValueError, "limits differ"):
            all_gather_variable(torch.ones(1), 5 + me())


@check
def aggregation_by_any_function() -> None:
    from headrace.collectives.run.torch.extensions import aggregate

    for size in SIZES:
        tensor = make(me(), size, torch.float32)
        aggregate(tensor, lambda rows: rows.median(dim=0).values)
        assert torch.equal(tensor, torch.stack(made(size, torch.float32)).median(dim=0).values)
    # neither associative nor commutative: the order of the ranks counts
    tensor = make(me(), 100, torch.float64)
    aggregate(
        tensor, lambda rows: (rows * torch.arange(1.0, len(rows) + 1).double()[:, None]).sum(0)
    )
    assert torch.equal(tensor, sum((k + 1) * one for k, one in enumerate(made(100, torch.float64))))


@check
def calls_in_the_background() -> None:
    import headrace.torch

    large, small = torch.ones(1_000_000), torch.ones(10)
    with headrace.torch.background():
        work = dist.all_reduce(large, async_op=True)
    dist.all_reduce(small)
    work.wait()
    assert (large == len(everyone())).all()
    assert (small == len(everyone())).all()


@slow
def the_profiler_shows_calls_from_begin_to_end() -> None:
    from torch.profiler import profile

    tensor = torch.ones(1_000_000)
    with profile() as found:
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        dist.broadcast(torch.ones(10), 0, async_op=True).wait()
        work.wait()
        work.get_future().wait()
    names = [event.name for event in found.events() if event.name.startswith("headrace:")]
    assert sorted(names) == ["headrace:allreduce", "headrace:allreduce", "headrace:broadcast"], (
        names
    )
    spans = [event for event in found.events() if event.name == "headrace:allreduce"]
    # over a millisecond, unless there is no peer
    assert len(everyone()) == 1 or all(span.cpu_time_total > 100 for span in spans)
