"""Tensors whose memory is laid out in other ways than most."""

import sys

import torch
import torch.distributed as dist

from tests.conformance.sample.checks import check, everyone, me, raises, same


def single(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One element, of stride 3; torch calls such a tensor contiguous."""
    tensor = torch.full((6,), value).to(dtype)[::3][:1]
    assert tensor.stride() == (3,)
    assert tensor.is_contiguous()
    return tensor


def none(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """No element, of any stride."""
    return torch.full((6,), value).to(dtype).as_strided((0, 2), (5, 3), 1)


def columns(value: float) -> torch.Tensor:
    """A tensor on the CPU that is not contiguous."""
    return torch.full((2, 3), float(value), device="cpu").T


@check
def another_default_device() -> None:
    """Buffers of calls were made on it, as in a script with torch.set_default_device("cuda")."""
    n = len(everyone())
    total = sum(everyone())
    with torch.device("meta"):
        dist.barrier()
        dist.all_reduce(landing := columns(me()))
        assert landing.flatten().tolist() == [total] * 6
        dist.all_gather(parts := [columns(9) for _ in everyone()], columns(me()))
        assert [part[0, 0].item() for part in parts] == list(everyone())
        dist.reduce_scatter(landing, [columns(rank) for rank in everyone()])
        assert landing.flatten().tolist() == [n * me()] * 6
        dist.scatter(landing, [columns(rank) for rank in everyone()] if me() == 0 else None, 0)
        assert landing.flatten().tolist() == [me()] * 6
        dist.all_to_all(parts, [columns(me() + rank) for rank in everyone()])
        assert [part[0, 0].item() for part in parts] == [me() + rank for rank in everyone()]
        dist.all_reduce(sparse := columns(1).to_sparse())
        assert sparse.to_dense().flatten().tolist() == [n] * 6


@check
def one_or_no_element_of_any_stride() -> None:
    """A view of such a tensor as bytes is an error of torch, which one rank alone came upon."""
    n = len(everyone())
    root = me() == 0
    total = sum(everyone())
    for kind in (single, none):
        for dtype in (torch.float32, torch.complex64, torch.int8):
            size = kind(0).numel()

            def says(value: float, *found: torch.Tensor, size: int = size) -> None:
                for tensor in found:
                    assert tensor.flatten().tolist() == [value] * size

            one = kind(me(), dtype)
            dist.all_reduce(one)
            says(total, one)
            dist.broadcast(one, 0)
            pair = [kind(me(), dtype), kind(2, dtype)]
            dist.all_reduce_coalesced(pair)
            says(total, pair[0])
            says(2 * n, pair[1])
            dist.reduce(one := kind(me(), dtype), 0)
            says(total if root else me(), one)
            parts = [kind(9, dtype) for _ in everyone()]
            dist.all_gather(parts, kind(me(), dtype))
            for rank, part in enumerate(parts):
                says(rank, part)
            whole = torch.empty(n * size, dtype=dtype)
            dist.all_gather_into_tensor(whole, kind(me(), dtype))
            assert whole.tolist() == list(everyone()) * size
            parts = [kind(9, dtype) for _ in everyone()]
            dist.gather(kind(me(), dtype), parts if root else None, 0)
            for rank, part in enumerate(parts):
                says(rank if root else 9, part)
            dist.scatter(one, [kind(rank, dtype) for rank in everyone()] if root else None, 0)
            says(me(), one)
            dist.reduce_scatter(one, [kind(rank, dtype) for rank in everyone()])
            says(n * me(), one)
            dist.reduce_scatter_tensor(one, torch.full((n * size,), 3).to(dtype))
            says(3 * n, one)
            parts = [kind(9, dtype) for _ in everyone()]
            dist.all_to_all(parts, [kind(me() + rank, dtype) for rank in everyone()])
            for rank, part in enumerate(parts):
                says(me() + rank, part)
            arrived = kind(9, dtype)
            rows = [1 if rank == 0 else 0 for rank in everyone()]
            if size and n > 1:
                dist.all_to_all_single(
                    arrived if root else torch.empty(0, dtype=dtype),
                    kind(7, dtype) if me() == 1 else torch.empty(0, dtype=dtype),
                    [1 if rank == 1 else 0 for rank in everyone()] if root else [0] * n,
                    rows if me() == 1 else [0] * n,
                )
                says(7 if root else 9, arrived)
            peers = [(me() + 1) % n, (me() - 1) % n]
            if n > 1:
                work = dist.isend(kind(me(), dtype), peers[0])
                dist.recv(one, peers[1])
                work.wait()
                says(peers[1], one)
    uneven = [single(9) if rank == 0 else torch.zeros(2) for rank in everyone()]
    dist.all_gather(uneven, single(4) if root else torch.ones(2))
    assert uneven[0].tolist() == [4]


@check
def tensors_of_inference_mode() -> None:
    """Results are copied to a strided one by another thread, which is not in inference mode."""
    with torch.inference_mode():
        plain, turned = torch.ones(3), torch.ones(2, 3).t()
    dist.all_reduce(plain)
    for work in [dist.all_reduce(turned, async_op=True)]:
        work.wait()
    dist.all_reduce(turned)
    blocks = [torch.empty_like(turned) for _ in everyone()]
    dist.all_gather(blocks, turned)
    same(plain + 0, torch.full((3,), float(len(everyone()))))
    same(turned + 0, torch.full((3, 2), float(len(everyone()) ** 2)))
    with torch.inference_mode():  # the call, too
        work = dist.all_reduce(turned, async_op=True)
        while not work.is_completed():
            pass
        work.wait()
        same(turned + 0, torch.full((3, 2), float(len(everyone()) ** 3)))


@check
def results_that_cannot_be_written_are_refused_before_the_call() -> None:
    """The error came when the data had arrived: the call had failed on this rank alone."""
    n = len(everyone())
    shared = torch.ones(1).expand(3)
    with raises(ValueError, "same memory"):
        dist.all_reduce(shared)
    with raises(ValueError, "same memory"):
        dist.all_gather([shared] * n, torch.ones(3))
    with raises(ValueError, "same memory"):
        dist.reduce_scatter_tensor(shared, torch.ones(3 * n))
    emptied = torch.ones(3)
    emptied.untyped_storage().resize_(0)
    with raises(ValueError, "storage"):
        dist.all_reduce(emptied)
    with raises(ValueError, "storage"):
        dist.broadcast(emptied, 0)
    with raises(ValueError, "storage"):
        dist.all_gather([torch.empty(3) for _ in everyone()], emptied)
    if n > 1:
        with raises(ValueError, "storage"):
            dist.send(emptied, (me() + 1) % n)
    lists = [[torch.empty(3), torch.empty(2)] for _ in everyone()]
    with raises(ValueError, "elements"):  # in the second part: the first must not have begun
        dist.all_gather_coalesced(lists, [torch.ones(3), torch.ones(3)])
    with raises(ValueError, "tensors"):
        dist.all_gather_coalesced([[torch.empty(3)] for _ in everyone()], [torch.ones(3)] * 2)
    group = dist.group.WORLD
    with raises(ValueError, "elements"):
        group.allgather_into_tensor_coalesced(
            [torch.empty(3 * n), torch.empty(4)], [torch.ones(3), torch.ones(3 * n)]
        )
    with raises(ValueError, "tensors"):
        group.reduce_scatter_tensor_coalesced([torch.empty(3)] * 2, [torch.ones(3 * n)])
    with raises(ValueError, "dimension"):
        dist.all_to_all_single(torch.tensor(1.0), torch.ones(n), [1] * n, [1] * n)
    one = torch.ones(1)
    dist.all_reduce(one)  # and none of them broke the group
    assert one.item() == n


@check
def a_storage_resized_under_a_call_is_an_error() -> None:
    """Only of a send: a receive would write to freed memory."""
    n = len(everyone())
    if n == 1 or "--staged" in sys.argv:  # of what is staged, the copy is sent
        return
    group = dist.new_group()  # of which the message may be lost
    sent = torch.ones(100)
    work = dist.isend(sent, (me() + 1) % n, group=group)
    room = torch.empty(100)
    sent.untyped_storage().resize_(0)
    with raises(ValueError, "resized from 400 to 0 bytes", "wait for the work"):
        work.wait()
    dist.recv(room, (me() - 1) % n, group=group)
    dist.destroy_process_group(group)
