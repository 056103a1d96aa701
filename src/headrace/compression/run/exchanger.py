"""Execution of codecs' exchanges on a process group of torch, of whatever backend.

The generators of a list run round by round: each is resumed in order, and what it asks for begins
at once, so that one encodes while another's payload is on its way. Small payloads of a round travel
together. The order of the collectives is that of the list, and so the same on all ranks.

Payloads of a GPU are exchanged by way of host memory. Their copies there are waited for no sooner
than necessary: while one is under way, the next payload is encoded.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.compression.codecs.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchanges,
    Request,
)
from headrace.compression.errors import ExchangeError
from headrace.compression.run.failures import FailureReports, is_gloo
from headrace.compression.run.messages import Messages, MessageWork
from headrace.facades import offered_by
from headrace.staging import CudaStaging, staging_of

TOGETHER_BYTES = 1 << 18
"""Payloads below this travel with others: copying them takes less time than a collective."""

_PACK_BYTES = 1 << 20  # a pack of this size begins at once, while the rest of the round is encoded


@offered_by("headrace.compression")
@dataclass(slots=True, kw_only=True)
class ExchangeStatistics:
    """Sums over steps.

    Attributes
    ----------
    steps : number of them.
    sent_bytes : bytes that this rank sends: 2(n-1)/n of an allreduce's payload, (n-1)/n of an
        all-to-all's, n-1 of an allgather's, for n ranks.
    encode_s : seconds of encoding, and of what codecs compute between their exchanges; of a GPU's
        payloads with their copies to host memory.
    exchange_s : seconds of waiting for exchanges.
    decode_s : seconds of decoding; of a GPU's payloads of starting its kernels.
    plain_bytes : bytes that this rank would have sent without compression.
    exposed_s : seconds in which the backward pass waited for exchanges.
    """

    steps: int = 0
    sent_bytes: float = 0.0
    encode_s: float = 0.0
    exchange_s: float = 0.0
    decode_s: float = 0.0
    plain_bytes: float = 0.0
    exposed_s: float = 0.0


@dataclass(slots=True)
class _Pack:
    """Small requests of one kind and type, which travel together."""

    requests: list[Request] = field(default_factory=list[Request])
    payload_bytes: int = 0

    def joined(self) -> Request:
        """Return one request for all."""
        first = self.requests[0]
        if len(self.requests) == 1:
            return first
        sent = [request.sent for request in self.requests]
        if isinstance(first, AllToAll):
            return AllToAll(torch.cat(sent, dim=1))
        joined = torch.cat([tensor.reshape(-1) for tensor in sent])
        if isinstance(first, AllReduce):
            return AllReduce(joined)
        return AllGather(joined, joined.new_empty(first.received.shape[0], joined.numel()))

    def take(self, joined: Request) -> None:
        """Copy the results of `joined` to the requests."""
        if len(self.requests) == 1:
            return
        start = 0
        for request in self.requests:
            into = request.received
            if isinstance(joined, AllReduce):
                part = joined.tensor[start : start + into.numel()].view(into.shape)
                start += into.numel()
            else:
                part = joined.received[:, start : start + into.shape[1]]
                start += into.shape[1]
            into.copy_(part)


@dataclass(slots=True)
class _Transfer:
    """A pack on its way.

    Attributes
    ----------
    joined : the pack's request, on the device of its tensors.
    staged : what is exchanged: `joined`, or the same in host memory.
    staging, ready : of a device: its staging, and the event before which `staged` is not complete.
    begun : whether the collective is; `work` is its handle.
    """

    pack: _Pack
    joined: Request
    staged: Request
    staging: CudaStaging | None = None
    ready: torch.cuda.Event | None = None
    begun: bool = False
    work: dist.Work | MessageWork | None = None

    def wait(self, reports: FailureReports) -> None:
        """Wait for the collective, and copy its results to the requests."""
        if self.work is not None:
            reports.wait(self.work)
        if self.staging is not None:
            self.staging.to_device(self.staged.received, self.joined.received)
        self.pack.take(self.joined)


class Exchanger:
    """Runs generators of exchanges on a process group.

    Parameters
    ----------
    group : with a backend for CPU tensors. While `run` runs, nothing else may begin collectives on
        it.

    Attributes
    ----------
    reports : of exchanges that failed.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = group.size()
        self.reports = FailureReports(group)
        self._messages = Messages(group) if is_gloo(group) and self._ranks > 1 else None
        self.sent_bytes = 0.0
        self.compute_s = 0.0
        self.exchange_s = 0.0

    def run(self, generators: Sequence[Exchanges]) -> None:
        """Run generators to their end.

        Raises
        ------
        ExchangeError : an exchange failed; names the rank that is missing.
        PayloadError : what arrived is not what an encoder makes.
        """
        running = list(generators)
        while running:
            running = self._round(running)

    def _round(self, running: Sequence[Exchanges]) -> list[Exchanges]:
        """Resume each generator, and complete what they ask for; returns those that go on."""
        transfers: list[_Transfer] = []
        packs: dict[tuple[type, torch.dtype], _Pack] = {}
        unfinished: list[Exchanges] = []
        started = time.perf_counter()
        try:
            for generator in running:
                batch = next(generator, None)
                if batch is None:
                    continue
                unfinished.append(generator)
                for request in batch:
                    self._take(request, transfers, packs)
            for pack in packs.values():
                self._send(pack, transfers)
            self._begin(transfers, wait=True)
        except BaseException:  # memory of collectives under way is needed until they end
            for transfer in transfers:
                if transfer.begun:
                    with contextlib.suppress(RuntimeError):
                        transfer.wait(self.reports)
            raise
        begun = time.perf_counter()
        errors: list[RuntimeError] = []
        for transfer in transfers:
            try:
                transfer.wait(self.reports)
            except RuntimeError as error:
                errors.append(error)
        if errors:
            raise self._failed(errors[0]) from errors[0]
        self.compute_s += begun - started
        self.exchange_s += time.perf_counter() - begun
        return unfinished

    def _take(
        self,
        request: Request,
        transfers: list[_Transfer],
        packs: dict[tuple[type, torch.dtype], _Pack],
    ) -> None:
        """Send a request, or put it into a pack."""
        key = (type(request), request.sent.dtype)
        pack = packs.setdefault(key, _Pack())
        pack.requests.append(request)
        pack.payload_bytes += request.payload_bytes
        alone = request.payload_bytes >= TOGETHER_BYTES
        if alone and len(pack.requests) > 1:  # keep those before it for the next one
            pack.requests.pop()
            pack.payload_bytes -= request.payload_bytes
            self._send(_Pack([request], request.payload_bytes), transfers)
        elif pack.payload_bytes >= _PACK_BYTES or alone:
            self._send(packs.pop(key), transfers)

    def _send(self, pack: _Pack, transfers: list[_Transfer]) -> None:
        """Append the transfer of a pack, and begin those that are ready."""
        joined = pack.joined()
        staging = staging_of(joined.sent.device)
        if staging is None:
            transfers.append(_Transfer(pack, joined, joined))
        else:
            host, ready = staging.to_host(joined.sent)
            transfers.append(_Transfer(pack, joined, _like(joined, host, staging), staging, ready))
        self._begin(transfers, wait=False)

    def _begin(self, transfers: Sequence[_Transfer], *, wait: bool) -> None:
        """Begin the collectives of transfers, in order: of all, or until one is not ready."""
        for transfer in transfers:
            if transfer.begun:
                continue
            if transfer.ready is not None:
                if not wait and not transfer.ready.query():
                    return
                transfer.ready.synchronize()
            try:
                transfer.work = self._begun(transfer.staged)
            except RuntimeError as error:
                raise self._failed(error) from error
            transfer.begun = True

    def _failed(self, cause: RuntimeError) -> ExchangeError:
        """Return the error of a failed exchange; those under way fail, too."""
        error = self.reports.error(cause)
        if self._messages is not None:
            self._messages.abort()
        return error

    def _begun(self, request: Request) -> "dist.Work | MessageWork | None":
        """Begin a collective."""
        payload = request.payload_bytes
        others = self._ranks - 1
        match request:
            case AllReduce(tensor):
                self.sent_bytes += 2 * others / self._ranks * payload
                return dist.all_reduce(tensor, group=self._group, async_op=True)
            case AllToAll():
                self.sent_bytes += others / self._ranks * payload
                if self._messages is not None:
                    return self._messages.begin(request)
                return dist.all_to_all_single(
                    request.received, request.sent, group=self._group, async_op=True
                )
            case AllGather(sent, received):
                self.sent_bytes += others * payload
                if self._messages is not None:
                    return self._messages.begin(request)
                return dist.all_gather_into_tensor(
                    received.view(-1), sent, group=self._group, async_op=True
                )


def _like(request: Request, host: Tensor, staging: CudaStaging) -> Request:
    """Return a request in host memory for a copy of what another one sends."""
    if isinstance(request, AllReduce):
        return AllReduce(host)
    received = staging.room(request.received)
    if isinstance(request, AllGather):
        return AllGather(host, received)
    exchange = AllToAll(host)
    exchange.received = received
    return exchange
