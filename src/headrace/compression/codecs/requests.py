"""Exchanges that a codec asks for, and their execution among ranks of one process.

A codec's `average` is a generator. It yields lists of requests, which can be in flight together,
and goes on when all are complete. So one implementation runs on a process group
(`headrace.compression.run`), and among ranks that are objects of one process (`run_together`).
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor


@dataclass(slots=True)
class AllReduce:
    """Sum of all ranks' `tensor`, in place: it is `sent` and `received`."""

    tensor: Tensor

    @property
    def sent(self) -> Tensor:
        """The tensor."""
        return self.tensor

    @property
    def received(self) -> Tensor:
        """The tensor."""
        return self.tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes of this rank's tensor."""
        return self.tensor.nbytes


@dataclass(slots=True)
class AllToAll:
    """Row r of `sent` goes to rank r; row r of `received` is from rank r.

    Attributes
    ----------
    sent : of shape (ranks, k).
    """

    sent: Tensor
    received: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.received = torch.empty_like(self.sent)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all rows."""
        return self.sent.nbytes


@dataclass(slots=True)
class AllGather:
    """Row r of `received` is rank r's `sent`.

    Attributes
    ----------
    sent : of shape (k,), contiguous.
    received : of shape (ranks, k).
    """

    sent: Tensor
    received: Tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes of this rank's tensor."""
        return self.sent.nbytes


Request = AllReduce | AllToAll | AllGather
Exchanges = Generator[list[Request], None, None]
"""Generator of requests: those of one list can be in flight together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Place of a call in its group and run.

    Attributes
    ----------
    rank, ranks : of the group.
    step : number of the call, equal on all ranks; with `seed` it seeds what is random.
    seed : equal on all ranks, different for each piece of a step.
    feedback : leave in the input what of it did not reach the mean (error feedback).
    """

    rank: int
    ranks: int
    step: int = 0
    seed: int = 0
    feedback: bool = True

    def generator(self, *, own: bool) -> torch.Generator:
        """Return a generator of random numbers: the same on all ranks, or this rank's `own`."""
        return torch.Generator().manual_seed(self._seed(own=own))

    def keys(self) -> Random:
        """Return a generator of keys of counter-based random numbers: this rank's own."""
        return Random(self._seed(own=True))

    def _seed(self, *, own: bool) -> int:
        key = (self.seed, self.step, self.rank + 1 if own else 0)
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


def requested(*requests: Request) -> Exchanges:
    """Ask for the requests together."""
    yield list(requests)


def lockstep(generators: Iterable[Exchanges]) -> Exchanges:
    """Run several generators together: their first requests in one list, then their second ones."""
    running = list(generators)
    while running:
        requests, running = advance(running)
        if requests:
            yield requests


def advance(generators: Iterable[Exchanges]) -> tuple[list[Request], list[Exchanges]]:
    """Return the next requests of generators, and those generators that have not ended."""
    requests: list[Request] = []
    running: list[Exchanges] = []
    for generator in generators:
        batch = next(generator, None)
        if batch is not None:
            requests += batch
            running.append(generator)
    return requests, running


def run_together(
    ranks: Sequence[Exchanges], observe: Callable[[int, Request], None] | None = None
) -> None:
    """Run the generators of all ranks in this process.

    Parameters
    ----------
    ranks : generator of each rank, in order.
    observe : called with (rank, request) for each one.
    """
    running = list(ranks)
    while True:
        lists = [next(generator, None) for generator in running]
        if all(requests is None for requests in lists):
            return
        for together in zip(*(requests or [] for requests in lists), strict=True):
            if observe is not None:
                for rank, request in enumerate(together):
                    observe(rank, request)
            _complete(together)


def _complete(requests: Sequence[Request]) -> None:
    """Carry out one exchange; sums are in rank order."""
    match requests[0]:
        case AllReduce(tensor):
            total = tensor.clone()
            for request in requests[1:]:
                assert isinstance(request, AllReduce)
                total += request.tensor
            for request in requests:
                assert isinstance(request, AllReduce)
                request.tensor.copy_(total)
        case AllToAll():
            for rank, request in enumerate(requests):
                assert isinstance(request, AllToAll)
                for sender, source in enumerate(requests):
                    assert isinstance(source, AllToAll)
                    request.received[sender].copy_(source.sent[rank])
        case AllGather():
            for request in requests:
                assert isinstance(request, AllGather)
                for sender, source in enumerate(requests):
                    assert isinstance(source, AllGather)
                    request.received[sender].copy_(source.sent)
