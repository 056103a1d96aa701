"""Times of codecs: what an averager computes for a bucket, without the exchanges.

The computation is that of a training step (`headrace.compression.averaging`): residuals, packing
and checks are part of it, and the copies of a GPU's payloads to host memory and back. Exchanges are
replaced by copies that are not timed.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from headrace.compression.averaging import Averager
from headrace.compression.codecs.requests import AllGather, AllToAll, Request, advance
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec, codec_spec
from headrace.compression.policy import Policy
from headrace.compression.profile import CodecTiming, ModelTensor
from headrace.compression.traffic import transfers
from headrace.staging import CudaStaging, staging_of

Barrier = Callable[[], object]
"""Returns when all ranks have called it: then all encode at once."""

_WARM_UP = 2
_SCALE = 1e-3


@dataclass(slots=True)
class Computed:
    """Times of one step's computation, in us: before the first exchanges, the last ones, and all.

    They are of one rank, which has `ranks` others' payloads to decode.
    """

    first: float
    last: float
    total: float


def averaging_us(averager: Averager, gradients: Sequence[tuple[str, torch.Tensor]]) -> Computed:
    """Return the times of one averaging of gradients, whose exchanges are copies of its own."""
    staging = staging_of(gradients[0][1].device) if gradients else None
    spent: list[float] = []
    for part in (lambda: averager.add(gradients), averager.finish):
        began = time.perf_counter()
        running = part()
        while running:
            requests, running = advance(running)
            if staging is not None:
                _to_host([request.sent for request in requests], staging)
            spent.append((time.perf_counter() - began) * 1e6)
            if not requests:
                spent[-1] = -spent[-1]  # followed by no exchange
            for request in requests:
                _echo(request)
            if staging is None:
                began = time.perf_counter()
                continue
            results = [request.received for request in requests]
            hosts = _to_host(results, staging)
            began = time.perf_counter()
            for host, result in zip(hosts, results, strict=True):
                staging.to_device(host, result)
    exchanges = [index for index, took in enumerate(spent) if took > 0]
    total = sum(map(abs, spent))
    if not exchanges:
        return Computed(first=total, last=total, total=total)
    return Computed(
        first=sum(map(abs, spent[: exchanges[0] + 1])),
        last=sum(map(abs, spent[: exchanges[-1] + 1])),
        total=total,
    )


def _to_host(tensors: Sequence[torch.Tensor], staging: CudaStaging) -> list[torch.Tensor]:
    """Return copies in host memory, when the device has completed all work until now."""
    hosts = [staging.to_host(tensor)[0] for tensor in tensors]
    staging.mark().synchronize()
    return hosts


def _echo(request: Request) -> None:
    """Complete an exchange as if all ranks had sent the same."""
    if isinstance(request, AllToAll):
        request.received.copy_(request.sent)
    elif isinstance(request, AllGather):
        request.received.copy_(request.sent.expand_as(request.received))


def time_codecs(
    codecs: Sequence[CodecSpec | str],
    buckets: Sequence[Sequence[ModelTensor]],
    *,
    ranks: int,
    rank: int = 0,
    policy: Policy | None = None,
    barrier: Barrier = lambda: None,
    repeats: int = 7,
    device: torch.device | str = "cpu",
    step: Callable[[], object] = lambda: None,
) -> dict[str, CodecTiming]:
    """Time codecs on each bucket, and on all of them together.

    All ranks of a host call it at once, with a `barrier` of theirs: their processors and memory are
    then shared as in a training step.

    Parameters
    ----------
    buckets : parameters that are encoded together.
    ranks : of the job: how many payloads are decoded, and the number of shards.
    policy : which parameters are compressed (default: `Policy`'s rules).
    repeats : of each computation; medians count.
    device : of the gradients.
    step : of training; taken before all buckets are averaged together, as those of a job are, so
        that processors and caches are as a step leaves them.

    Returns
    -------
    By the codec's text; codecs that compress none of the parameters are left out.

    Raises
    ------
    CompressionError : no such codec, or fewer than two ranks.
    """
    if ranks < 2:
        raise CompressionError(f"ranks is {ranks}, needs at least 2: one rank exchanges nothing")
    rules = policy or Policy()
    groups = [list(bucket) for bucket in buckets]
    if len(groups) > 1:
        groups.append([tensor for bucket in groups for tensor in bucket])
    befores = [*([lambda: None] * (len(groups) - 1)), step]
    timings: dict[str, CodecTiming] = {}
    for spec in map(codec_spec, codecs):
        rows: dict[int, tuple[float, float]] = {}
        for group, before in zip(groups, befores, strict=True):
            coded = [t for t in group if rules.codec_of(t.name, t.shape, spec) != NONE]
            elements = sum(tensor.elements for tensor in coded)
            if elements and elements not in rows:
                averager = _averager(coded, replace(rules, codec=spec), rank, ranks)
                kinds = {t.collective for t in transfers(spec, [t.shape for t in coded], ranks)}
                rows[elements] = _parts(
                    _median(averager, _random(coded, device), before, barrier, repeats),
                    kinds,
                    ranks,
                )
        if rows:
            timings[str(spec)] = _timing(rows)
    return timings


def _timing(rows: Mapping[int, tuple[float, float]]) -> CodecTiming:
    """Return the timing of (encode, decode) us by elements."""
    sizes = sorted(rows)
    return CodecTiming(
        elements=tuple(sizes),
        encode_us=tuple(rows[size][0] for size in sizes),
        decode_us=tuple(rows[size][1] for size in sizes),
    )


def _averager(tensors: Sequence[ModelTensor], policy: Policy, rank: int, ranks: int) -> Averager:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    return Averager(policy, shapes, rank=rank, ranks=ranks)


def _random(
    tensors: Sequence[ModelTensor], device: torch.device | str
) -> list[tuple[str, torch.Tensor]]:
    """Return gradients, equal on all ranks."""
    generator = torch.Generator().manual_seed(1)
    drawn = {
        t.name: torch.randn(t.shape, generator=generator, dtype=torch.float32, device="cpu")
        for t in tensors
    }
    return [(name, (values * _SCALE).to(device)) for name, values in drawn.items()]


def _median(
    averager: Averager,
    fresh: Sequence[tuple[str, torch.Tensor]],
    before: Callable[[], object],
    barrier: Barrier,
    repeats: int,
) -> Computed:
    """Return the medians of repeated computations, each begun by all ranks at once."""
    gradients = [(name, torch.empty_like(values)) for name, values in fresh]
    taken: list[Computed] = []
    for number in range(_WARM_UP + repeats):
        before()
        for (_, gradient), (_, values) in zip(gradients, fresh, strict=True):
            gradient.copy_(values)
        barrier()
        computed = averaging_us(averager, gradients)
        if number >= _WARM_UP:
            taken.append(computed)
    return Computed(
        first=statistics.median(times.first for times in taken),
        last=statistics.median(times.last for times in taken),
        total=statistics.median(times.total for times in taken),
    )


def _parts(computed: Computed, kinds: set[str], ranks: int) -> tuple[float, float]:
    """Return (encode, decode) us of a payload, see `CodecTiming`: how often each happens is known.

    A sharded codec encodes all elements and decodes its shard of every rank's, then encodes the
    shard again and decodes all; a gathered one decodes every rank's payload.
    """
    if "all_to_all" in kinds:
        coding = computed.total - computed.first * (1 + 1 / ranks)
        return computed.first, max(0.0, coding / 2)
    if "allgather" in kinds:
        return computed.first, max(0.0, (computed.total - computed.first) / ranks)
    return computed.last, max(0.0, computed.total - computed.last)
