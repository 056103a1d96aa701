"""Mistakes, what headrace adds to torch's interface, and what its profiler sees."""

import queue

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
    same,
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
def extensions_begun_together() -> None:
    """Several are under way, of different sizes, waited for backwards, between other calls."""
    from headrace.collectives.run.torch.extensions import (
        aggregate,
        all_gather_variable,
        all_to_all_variable,
    )

    n, seen = len(everyone()), []

    def votes(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.shape[1])
        return (rows * torch.arange(1.0, len(rows) + 1)[:, None]).sum(0)

    wanted: list[torch.Tensor] = []
    begun: list[dist.Work] = []
    sums: list[tuple[dist.Work, torch.Tensor]] = []
    for salt, size in enumerate((70_001, 0, 1, 1000, 7)):
        alike, tensor = (make(me(), size, torch.float32, salt).div_(3) for _ in range(2))
        aggregate(alike, votes)
        seen.clear()
        wanted += [alike]
        begun.append(aggregate(tensor, votes, async_op=True))
        sums.append((dist.all_reduce(total := torch.ones(size + 1), async_op=True), total))
        own = make(me(), (me() * size) % 1234, torch.float64, salt)
        rows = [own[: dst + me()] for dst in everyone()]
        wanted += [*all_gather_variable(own, 5000), *all_to_all_variable(rows, 5000)]
        begun.append(all_gather_variable(own, 5000, async_op=True))
        begun.append(all_to_all_variable(rows, 5000, async_op=True))
    dist.barrier()  # on connections of its own: not behind them
    for work in reversed(begun):
        assert work.wait()
        assert work.is_success()
    found = [block for work in begun for block in work.result()]
    for block, wish in zip(found, wanted, strict=True):
        same(block, wish)
    for work, total in sums:
        work.wait()
        assert bool((total == n).all())


@check
def aggregation_in_inference_mode() -> None:
    """The function and the second collective failed: on a thread that is not in that mode."""
    from headrace.collectives.run.torch.extensions import aggregate

    with torch.inference_mode():
        tensor = make(me(), 9, torch.float32)
        aggregate(tensor, lambda rows: rows.mul_(2).sum(0), async_op=True).wait()
    assert torch.equal(tensor, torch.stack(made(9, torch.float32)).mul(2).sum(0))


@check
def extensions_in_futures_and_callbacks() -> None:
    from headrace.collectives.run.torch.extensions import aggregate, all_gather_variable

    n = len(everyone())
    tensor = torch.full((5,), float(me()))
    done = aggregate(tensor, lambda rows: rows.amax(0), async_op=True).get_future()

    def again(future: torch.futures.Future) -> torch.Tensor:
        (most,) = future.value()
        assert most.tolist() == [n - 1.0] * 5
        aggregate(most, lambda rows: rows.sum(0), async_op=True).wait()
        return all_gather_variable(most[: me() + 1], n, async_op=True).get_future().wait()[-1]

    assert done.then(again).wait().tolist() == ([n * (n - 1.0)] * 5)[:n]
    # one waits, in a callback, for another that was begun after it
    first = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    later: queue.Queue[dist.Work] = queue.Queue()
    waits = first.then(lambda _: later.get().wait())
    work = all_gather_variable(torch.ones(me()), n, async_op=True)
    later.put(work)
    assert waits.wait()
    assert [len(block) for block in work.result()] == list(everyone())


@check
def begun_extensions_report_lengths_on_all_ranks() -> None:
    from headrace.collectives.run.torch.extensions import all_gather_variable, all_to_all_variable

    n = len(everyone())
    size = 4 if me() == n - 1 else 1
    gathered = all_gather_variable(torch.ones(size), 3, async_op=True)
    sent = [torch.ones(size if dst == 0 else 1) for dst in everyone()]
    exchanged = all_to_all_variable(sent, 3, async_op=True)
    fine = all_gather_variable(torch.ones(2), 3, async_op=True)
    for work in (exchanged, gathered):
        with raises(RuntimeError, f"rank {n - 1} has 4 rows", "limit is 3"):
            work.wait()
        assert "4 rows" in str(work.exception())
        with raises(RuntimeError, "4 rows"):
            work.get_future().wait()
    fine.wait()
    assert [len(block) for block in fine.result()] == [2] * n
    with raises(ValueError, "tensors for"):
        all_to_all_variable([torch.ones(1)] * (n + 1), 3, async_op=True)


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
