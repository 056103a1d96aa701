"""Point to point."""

import logging
import logging.handlers

import torch
import torch.distributed as dist

from tests.conformance.sample.checks import check, everyone, make, me, raises, same


@check
def send_and_receive() -> None:
    n = len(everyone())
    if n == 1:
        return
    if me() == 0:
        for dst in range(1, n):
            dist.send(make(0, 10, torch.float32, dst), dst, tag=dst)
            dist.send(make(0, 10, torch.float32, dst).view(2, 5).t(), dst, tag=50)
    else:
        second, first = torch.empty(5, 2), torch.empty(10)
        late = dist.irecv(second, 0, tag=50)
        assert dist.recv(first, 0, tag=me()) == 0
        late.wait()
        same(first, make(0, 10, torch.float32, me()))
        same(second, first.view(2, 5).t())
    empty = torch.empty(0)
    if me() == 0:
        dist.send(empty, 1)
    elif me() == 1:
        dist.recv(empty, 0)
    big = torch.full((300_000,), float(me()))
    if me() == 0:
        works = [dist.isend(big, dst) for dst in range(1, n)]
        for work in works:
            work.wait()
            assert work.is_completed()
    else:
        strided = torch.zeros(300_000, 2)[:, 1]
        dist.recv(strided, 0)
        same(strided, torch.zeros(300_000))


@check
def a_rank_sends_to_itself() -> None:
    """It was refused. torch allows it for isend; a process on Gloo ends."""
    for size in (0, 40, 300_000):
        sent = make(me(), size, torch.float32)
        first, second, anywhere = (torch.empty(size) for _ in range(3))
        early = dist.irecv(first, me(), tag=8)
        works = [dist.isend(sent, me(), tag=tag) for tag in (8, 9, 10)]
        works += [early, dist.irecv(second, me(), tag=9)]
        works.append(dist.irecv(anywhere, tag=10))
        for work in works:
            work.wait()
        for tensor in (first, second, anywhere):
            same(tensor, sent)
        ops = [dist.P2POp(dist.isend, sent, me()), dist.P2POp(dist.irecv, first.zero_(), me())]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(first, sent)


@check
def receive_from_anybody() -> None:
    n = len(everyone())
    if me() == 0:
        seen = set()
        for _ in range(n - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor, tag=7)
            same(tensor, torch.full((3,), float(source)))
            seen.add(source)
        assert seen == set(range(1, n))
    else:
        dist.send(torch.full((3,), float(me())), 0, tag=7)


@check
def batches_of_messages() -> None:
    n = len(everyone())
    if n == 1:
        return
    right, left = (me() + 1) % n, (me() - 1) % n
    landing = [torch.empty(50), torch.empty(50_000)]
    ops = []
    for index, tensor in enumerate(landing):
        ops.append(dist.P2POp(dist.irecv, tensor, left))
        ops.append(dist.P2POp(dist.isend, make(me(), len(tensor), torch.float32, index), right))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for index, tensor in enumerate(landing):
        same(tensor, make(left, len(tensor), torch.float32, index))
    future = dist.irecv(landing[0], left).get_future()
    dist.isend(make(me(), 50, torch.float32, 9), right)  # this work is dropped
    future.wait()
    same(future.value()[0], make(left, 50, torch.float32, 9))


@check
def tags_out_of_range_are_refused() -> None:
    if len(everyone()) == 1:
        return
    for tag in (-1, 1 << 31):
        with raises(ValueError, "tag", str(tag)):
            dist.send(torch.ones(1), (me() + 1) % len(everyone()), tag=tag)


@check
def a_message_of_another_type_is_warned_of_once() -> None:
    """Bytes of equal number were taken for numbers of another type, without a word."""
    if len(everyone()) == 1:
        return
    right, left = (me() + 1) % len(everyone()), (me() - 1) % len(everyone())
    group = dist.new_group()
    found = logging.handlers.BufferingHandler(100)
    logging.getLogger("headrace").addHandler(found)
    try:
        for sent, received, tag in (
            (torch.float32, torch.float32, 0),
            (torch.float32, torch.int32, 1),
            (torch.int64, torch.float64, 2),
        ):
            work = dist.isend(torch.ones(5, dtype=sent), right, group=group, tag=tag)
            if tag == 1:  # whether it comes before the receive is posted, or after
                dist.barrier(group=group)
            room = torch.zeros(5, dtype=received)
            dist.recv(room, left, group=group, tag=tag)
            work.wait()
            same(room.view(sent), torch.ones(5, dtype=sent))
    finally:
        logging.getLogger("headrace").removeHandler(found)
    texts = [record.getMessage() for record in found.buffer if "message of" in record.msg]
    assert len(texts) == 1, texts
    assert f"message of float32 from rank {left} into memory of int32" in texts[0], texts
    dist.destroy_process_group(group)
