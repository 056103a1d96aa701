"""Groups of some ranks, objects, barriers."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.conformance.sample.checks import check, everyone, made, make, me, raises, reference, same


@check
def groups_of_some_ranks() -> None:
    n = len(everyone())
    for members in ([r for r in everyone() if r % 2 == 0], list(reversed(everyone())), [n - 1]):
        group = dist.new_group(members)
        if me() not in members:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        ranks = dist.get_process_group_ranks(group)
        tensor = make(me(), 33, torch.float32)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.stack([make(r, 33, torch.float32) for r in ranks]).sum(0))
        root = members[-1]
        spread = make(me(), 4, torch.float32)
        dist.broadcast(spread, root, group=group)
        same(spread, make(root, 4, torch.float32))
        blocks = [torch.empty(4) for _ in ranks]
        dist.all_gather(blocks, make(me(), 4, torch.float32), group=group)
        for rank, block in zip(ranks, blocks, strict=True):
            same(block, make(rank, 4, torch.float32))
        dist.barrier(group=group)
        assert dist.get_backend(group) == "headrace"
        dist.destroy_process_group(group)
    halves, _ = dist.new_subgroups(group_size=1)
    alone = torch.full((3,), float(me()))
    dist.all_reduce(alone, group=halves)
    out = torch.empty(3)
    dist.all_to_all_single(out, alone, group=halves)
    assert out.tolist() == [float(me())] * 3


@check
def groups_at_the_same_time() -> None:
    groups = [dist.new_group(list(everyone())) for _ in range(3)]
    works = []
    for i, group in enumerate(groups * 3):
        tensor = make(me(), 20_000, torch.float32, i)
        works.append((i, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for i, tensor, work in reversed(works):
        work.wait()
        same(tensor, reference(ReduceOp.SUM, made(20_000, torch.float32, i)))
    for group in groups:
        dist.destroy_process_group(group)


@check
def objects() -> None:
    n = len(everyone())
    thing = {"rank": me(), "text": "x" * (10 * me())}
    things: list[object] = [None] * n
    dist.all_gather_object(things, thing)
    assert [t["rank"] for t in things] == list(everyone())  # type: ignore[index]
    assert len(things[-1]["text"]) == 10 * (n - 1)  # type: ignore[index]
    listed = [thing, "second"] if me() == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == [{"rank": 0, "text": ""}, "second"]
    gathered: list[object] | None = [None] * n if me() == 0 else None
    dist.gather_object(me(), gathered, 0)
    assert gathered is None or gathered == list(everyone())
    output: list[object] = [None]
    dist.scatter_object_list(output, [f"for {r}" for r in everyone()] if me() == 0 else None, 0)
    assert output == [f"for {me()}"]
    if n > 1 and me() < 2:
        carried = ["hello", 3] if me() == 0 else [None, None]
        (dist.send_object_list if me() == 0 else dist.recv_object_list)(carried, 1 - me())
        assert carried == ["hello", 3]


@check
def barriers() -> None:
    dist.barrier()
    group = dist.new_group(list(everyone()))
    dist.monitored_barrier(group, timeout=timedelta(seconds=20))
    last = len(everyone()) - 1
    if last and me() != last:
        with raises(RuntimeError, f"Rank {last} failed to pass monitoredBarrier"):
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    dist.barrier()
    dist.destroy_process_group(group)


@check
def identity() -> None:
    group = dist.distributed_c10d._get_default_group()
    assert dist.get_backend() == "headrace"
    assert group.name() == "headrace"
    assert group.rank() == me()
    assert group.size() == len(everyone())
    assert group._device_types == [torch.device("cpu")]
    dist.set_timeout(timedelta(seconds=45))
    dist.all_reduce(torch.ones(1))
    # read by torch.compile, where its ranks agree on what to save, and by pipelines
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=45)
    assert not backend._supports_time_estimate
    assert not group.supports_window


@check
def groups_that_are_split_off() -> None:
    n = len(everyone())
    halves = [list(everyone())[: (n + 1) // 2], list(everyone())[(n + 1) // 2 :]]
    halves = [half[::-1] for half in halves if half]
    mine = next(half for half in halves if me() in half)
    group = dist.split_group(split_ranks=halves, timeout=timedelta(seconds=50))
    assert dist.get_process_group_ranks(group) == mine
    assert (group.rank(), group.size()) == (mine.index(me()), len(mine))
    assert dist.get_backend(group) == "headrace"
    total = torch.tensor(float(me()))
    dist.all_reduce(total, group=group)
    assert total.item() == sum(mine)
    gathered = [torch.zeros(1) for _ in mine]
    dist.all_gather(gathered, torch.tensor([float(me())]), group=group)
    assert torch.cat(gathered).tolist() == mine
    alone = dist.split_group(group, [[rank] for rank in range(len(mine))], group_desc="alone")
    assert dist.get_process_group_ranks(alone) == [me()]
    assert alone.group_desc == "alone"
    dist.barrier(group=alone)
    dist.destroy_process_group(alone)
    dist.destroy_process_group(group)
    again = dist.split_group(split_ranks=[halves[0]])
    assert (again is dist.GroupMember.NON_GROUP_MEMBER) == (me() not in halves[0])
    if me() in halves[0]:
        dist.barrier(group=again)
        dist.destroy_process_group(again)
    with raises(ValueError, "different ones from 0"):
        dist.split_group(split_ranks=[[n]])
