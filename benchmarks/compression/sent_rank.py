"""One worker of `benchmarks.compression.sent`: averages vectors over headrace's backend.

The first message is {"store", "rank", "ranks"}. Then a message {"codec", "elements"} is answered by
{"sent_bytes", "buffer_bytes", "digest"}: the bytes that the connections' counters gained, those of
the payloads' memory, and a digest of the mean.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.compression.codecs.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Context,
    Exchanges,
    Request,
)
from headrace.compression.codecs.table import make_codec
from headrace.launch.worker import Receive, Send, run_worker


def gradient(rank: int, elements: int) -> Tensor:
    """Return a rank's vector: a part common to all ranks, and its own."""
    own, common = torch.Generator().manual_seed(rank + 1), torch.Generator().manual_seed(0)
    return torch.randn(elements, generator=common) + torch.randn(elements, generator=own)


def held_bytes(requests: list[Request]) -> int:
    """Return the bytes of all memory that a rank's requests refer to."""
    tensors: list[Tensor] = []
    for request in requests:
        if isinstance(request, AllReduce):
            tensors.append(request.tensor)
        else:
            tensors += [request.sent, request.received]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def digest(mean: Tensor) -> str:
    """Return a digest of a mean's bits."""
    return hashlib.sha256(mean.numpy().tobytes()).hexdigest()


def _exchange(exchanges: Exchanges) -> list[Request]:
    """Carry out a codec's requests on the default group, and return them."""
    done: list[Request] = []
    for batch in exchanges:
        for request in batch:
            match request:
                case AllReduce(tensor):
                    dist.all_reduce(tensor)
                case AllToAll():
                    dist.all_to_all_single(request.received, request.sent)
                case AllGather(sent, received):
                    dist.all_gather_into_tensor(received.view(-1), sent)
            done.append(request)
    return done


def _sent_bytes() -> int:
    executor = dist.group.WORLD.executor
    return int(executor.statistics_reader().read().sent_bytes.sum())


def work(receive: Receive, send: Send) -> None:
    """Average vectors until the parent is gone."""
    start = receive()
    rank, ranks = start["rank"], start["ranks"]
    address = f"file://{start['store']}"
    dist.init_process_group("headrace", init_method=address, rank=rank, world_size=ranks)
    while True:
        task = receive()
        given = gradient(rank, task["elements"])
        mean = torch.empty_like(given)
        dist.barrier()
        before = _sent_bytes()
        context = Context(rank=rank, ranks=ranks)
        requests = _exchange(make_codec(task["codec"]).average([given], [mean], [{}], context))
        sent = _sent_bytes() - before
        send(sent_bytes=sent, buffer_bytes=held_bytes(requests), digest=digest(mean))


if __name__ == "__main__":
    run_worker(work)
