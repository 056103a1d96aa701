"""Codecs that send some of a vector's elements: TopK, MSTop-K, DGC and RandomK."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.compression.codecs.codec import Pieces, State, States
from headrace.compression.codecs.loops import select_topk
from headrace.compression.codecs.requests import AllGather, AllReduce, Context, Exchanges
from headrace.compression.codecs.wire import WIRE_TYPES, from_wire, mean_from_wire, to_wire
from headrace.compression.errors import PayloadError
from headrace.compression.families import CodecSpec
from headrace.compression.traffic import entries_bytes, kept_elements
from headrace.staging import download, upload

MOMENTUM = 0.9
"""Of DGC's velocity: the paper's, and most optimizers' default."""
_SMALLEST_SAMPLE = 1 << 12
_SAMPLED = 64  # one of so many elements: the threshold's share is within some 10% at 1%
_BISECTIONS = 16  # leaves a threshold that is known to 2^-7 of itself, and mostly exactly
_BLOCK = 1 << 20
_MAGNITUDE = 0x7FFFFFFF  # all bits of a float32 but its sign: ordered as the magnitudes, NaN last


@dataclass(slots=True)
class Sparse:
    """The elements of largest magnitude, gathered from all ranks with their indices.

    - ``topk`` sends exactly the k largest (Aji and Heafield, 2017).
    - ``mstopk`` finds the threshold by bisection of the number of elements above it (Shi et al.,
      2021), among those above a first threshold from a sample. It sends exactly k: those above the
      upper end of the last interval, then those in it by ascending index.
    - ``dgc`` takes the threshold from a sample alone (Lin et al., 2018), so it sends k or fewer;
      if more are above it, the k largest of these.

    A payload holds the number of entries, int32 indices in ascending order and the values. Both
    are checked on arrival. The mean is summed in the order of the ranks. What is not sent is the
    residual.

    DGC corrects for momentum: ``velocity = 0.9 velocity + gradient`` is accumulated in place of the
    gradient, and both are zero where an element was sent, so the optimizer has to be one without
    momentum. As `average` gets the sum of gradient and residual, the residual that it leaves is the
    unsent sum *plus the next call's 0.9 velocity*: what it gets then is the accumulated sum, and
    less the former unsent sum, which is in ``state["unsent"]``, it is the velocity. So residuals
    and the mean add up to the tensors and 0.9 of the ranks' velocities. At the first call the
    unsent sum is the residual of before, which is in `mean`: the velocity is the gradient then. A
    step that was not completed leaves both as they were, and so the momentum. Without feedback
    there is none.
    """

    spec: CodecSpec

    def average(
        self, tensors: Pieces, mean: Pieces, states: States, context: Context, /
    ) -> Exchanges:
        """Average one vector; see `Codec.average`."""
        (vector,), (result,), (state,) = tensors, mean, states
        if not len(vector):
            return
        correct = context.feedback and self.spec.family == "dgc"
        velocity = _velocity(vector, result, state) if correct else None
        k = kept_elements(self.spec, len(vector))
        sent = vector.new_zeros(entries_bytes(self.spec, len(vector)), dtype=torch.uint8)
        head, indices, values = _fields(sent, k, WIRE_TYPES[self.spec.wire])
        exact = values if values.dtype is torch.float32 else torch.empty_like(vector[:k])
        count = self._select(vector, k, indices, exact, context)
        head[0] = count
        if exact is not values:
            values.copy_(to_wire(exact, values.dtype))
        if context.feedback:
            places = indices[:count].long()
            vector[places] = exact[:count] - values[:count] if exact is not values else 0.0
            if velocity is not None:
                velocity[places] = 0.0
                vector.add_(velocity, alpha=MOMENTUM)
                velocity.mul_(-MOMENTUM).add_(vector)  # the unsent sum
        request = AllGather(sent, sent.new_empty((context.ranks, len(sent))))
        yield [request]
        self._add(request.received, k, result)

    def _select(
        self, vector: Tensor, k: int, indices: Tensor, values: Tensor, context: Context
    ) -> int:
        """Write k entries or fewer; return how many."""
        if self.spec.family == "topk":
            select_topk(vector, k, indices, values)
            return k
        generator = context.generator(own=True)
        if self.spec.family == "mstopk":
            places = select_by_bisection(vector, k, generator)
        else:
            places = select_by_sample(vector, k, generator)
        indices[: len(places)] = places
        torch.index_select(vector, 0, places, out=values[: len(places)])
        return len(places)

    def _add(self, received: Tensor, k: int, result: Tensor) -> None:
        """Write the mean of all ranks' entries.

        Raises
        ------
        PayloadError : a number of entries, or indices, that no encoder makes.
        """
        fields = [_fields(row, k, WIRE_TYPES[self.spec.wire]) for row in received]
        parts: list[tuple[Tensor, Tensor]] = []
        counts = download(torch.cat([head for head, _, _ in fields])).tolist()
        for rank, (count, (_, indices, values)) in enumerate(zip(counts, fields, strict=True)):
            if not 0 <= count <= k:
                raise PayloadError(f"rank {rank} sent {count} entries, needs 0 to {k}")
            parts.append((indices[:count], values[:count]))
        ascend = download(torch.stack([_ascend(indices, len(result)) for indices, _ in parts]))
        for rank, good in enumerate(ascend.tolist()):
            if not good:
                raise PayloadError(
                    f"rank {rank} sent indices that do not ascend from 0 to {len(result) - 1}"
                )
        result.zero_()
        for indices, values in parts:
            result.index_add_(0, indices, values.float().div_(len(received)))


@dataclass(slots=True)
class RandomK:
    """The same random elements of all ranks, summed.

    One element of each of k intervals of equal length (to one element) is drawn from the shared
    seed, which needs k random numbers and no memory of the vector's size. With feedback values are
    sent as they are. Without, they are multiplied by the interval's length, so that the mean is
    unbiased.
    """

    spec: CodecSpec

    def average(
        self, tensors: Pieces, mean: Pieces, _states: States, context: Context, /
    ) -> Exchanges:
        """Average one vector; see `Codec.average`."""
        (vector,), (result,) = tensors, mean
        n = len(vector)
        if not n:
            return
        k = kept_elements(self.spec, n)
        ends = torch.arange(k + 1, dtype=torch.int64, device="cpu") * n // k
        lengths = ends.diff()
        drawn = torch.rand(
            k, dtype=torch.float64, generator=context.generator(own=False), device="cpu"
        )
        places = (drawn * lengths).long().clamp_(max=lengths - 1).add_(ends[:-1])
        places = upload(places, vector.device)
        values = vector[places]
        if not context.feedback:
            values *= upload(lengths, vector.device)
        sent = to_wire(values, WIRE_TYPES[self.spec.wire], context.ranks)
        if context.feedback:
            from_wire(sent, values, context.ranks)
            vector[places] -= values
        yield [AllReduce(sent)]
        mean_from_wire(sent, values, context.ranks)
        result.zero_()
        result[places] = values


def select_by_bisection(vector: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return the ascending indices (k,) of about the k largest magnitudes; k at least 1."""
    sample = _sample(vector, generator)
    # a quarter more than k, as samples vary
    count = min(len(sample), 1 + 5 * k * len(sample) // (4 * len(vector)))
    while True:
        low = _least_of(sample, count) if count else 0
        candidates = _at_least(vector, low)
        if len(candidates) >= k:
            break
        count = 2 * count if 2 * count <= len(sample) else 0
    magnitudes = vector[candidates].view(torch.int32) & _MAGNITUDE
    high = int(download(magnitudes.max())) + 1
    for _ in range(_BISECTIONS):  # at least k elements from `low` on, fewer from `high` on
        middle = (low + high) // 2
        if int(download((magnitudes >= middle).sum())) >= k:
            low = middle
        else:
            high = middle
    above, within = magnitudes >= high, (magnitudes >= low) & (magnitudes < high)
    within &= within.cumsum(0) <= k - above.sum()
    return candidates[above | within]


def select_by_sample(vector: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return the ascending indices of at most k elements above a sample's quantile."""
    sample = _sample(vector, generator)
    count = max(1, k * len(sample) // len(vector))
    candidates = _at_least(vector, max(_least_of(sample, count), 1))  # never zeros
    if len(candidates) <= k:
        return candidates
    places = torch.empty(k, dtype=torch.int32, device=vector.device)
    select_topk(vector[candidates], k, places, torch.empty_like(vector[:k]))
    return candidates[places.long()]


def _sample(vector: Tensor, generator: torch.Generator) -> Tensor:
    """Return the magnitudes' bits of random elements; all of a short vector."""
    if len(vector) > _SMALLEST_SAMPLE:
        size = max(len(vector) // _SAMPLED, _SMALLEST_SAMPLE)
        drawn = torch.randint(len(vector), (size,), generator=generator, device="cpu")
        vector = vector[upload(drawn, vector.device)]
    return vector.view(torch.int32) & _MAGNITUDE


def _least_of(sample: Tensor, count: int) -> int:
    """Return the least of the `count` largest."""
    return int(download(torch.topk(sample, count, sorted=False).values.min()))


def _at_least(vector: Tensor, threshold: int) -> Tensor:
    """Return the ascending indices of magnitudes with bits of at least `threshold`."""
    return torch.cat(
        [
            ((block.view(torch.int32) & _MAGNITUDE) >= threshold).nonzero().view(-1) + i * _BLOCK
            for i, block in enumerate(vector.split(_BLOCK))
        ]
    )


def _ascend(indices: Tensor, end: int) -> Tensor:
    """Return whether indices ascend from 0 or above to below `end`, as a tensor ()."""
    first, last = (indices[:1] >= 0).all(), (indices[-1:] < end).all()
    return (indices[1:] > indices[:-1]).all() & first & last


def _velocity(vector: Tensor, residual: Tensor, state: State) -> Tensor:
    """Turn the state's unsent sum into the velocity, in place; at first it is the gradient.

    Parameters
    ----------
    vector : gradient plus residual.
    residual : the former call's.
    """
    unsent = state.get("unsent")
    if unsent is None or unsent.shape != vector.shape:
        unsent = state["unsent"] = residual.clone()
    return unsent.neg_().add_(vector)


def _fields(row: Tensor, k: int, wire: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of a payload: number of entries (1,), indices (k,) and values (k,)."""
    end = 8 + 4 * k
    return (
        row[:4].view(torch.int32),
        row[8:end].view(torch.int32),
        row[end : end + k * wire.itemsize].view(wire),
    )
