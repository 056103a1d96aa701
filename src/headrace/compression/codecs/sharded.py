"""Sharded averaging: codecs whose encoded values cannot be summed on the way.

Every rank owns a shard of the vector. An all-to-all of encoded shards brings all ranks' values of a
shard to its owner, which aggregates and encodes them again; an allgather distributes the result. A
rank sends 2(n-1)/n of the encoded vector, and holds payloads of twice its size, whatever the number
n of ranks: an allgather of encoded vectors would send and hold n-1 times as much.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol

import torch
from torch import Tensor

from headrace.compression.codecs.codec import Pieces, States
from headrace.compression.codecs.requests import AllGather, AllToAll, Context, Exchanges
from headrace.compression.families import CodecSpec
from headrace.compression.traffic import PayloadLayout, shard_elements


class Coder(Protocol):
    """Encoder and decoder of a family.

    Attributes
    ----------
    layout : of its payloads.
    sums : whether `aggregate` decodes to the mean of the ranks' decoded values; if not, no rank
        knows what the second encoding changes.
    """

    layout: PayloadLayout
    sums: bool

    def scale(self, vector: Tensor) -> Tensor:
        """Return the scale of a rank's whole vector for `encode`: one number, or none."""
        ...

    def encode(self, vector: Tensor, scale: Tensor, payload: Tensor, random: Random, /) -> None:
        """Encode a shard.

        Parameters
        ----------
        vector : float32 (m,).
        scale : of the whole vector that the shard is a part of.
        payload : uint8, at least ``layout.payload_bytes(m)``.
        random : of this rank: keys of random numbers.
        """
        ...

    def decode(self, payload: Tensor, out: Tensor) -> None:
        """Write the decoded values of a payload to `out` (m,)."""
        ...

    def aggregate(self, payloads: Tensor, mean: Tensor, payload: Tensor, random: Random, /) -> None:
        """Encode the aggregate of the ranks' payloads.

        Parameters
        ----------
        payloads : uint8 (ranks, k).
        mean : float32 (m,), overwritten with the mean before it is encoded if `sums`.
        payload : uint8 (k,), for the result.
        """
        ...


class Sharded:
    """A codec of a family with a `Coder`; gets one vector a call.

    With feedback, a rank's residual is the error of its own encoding; an owner adds the error of
    the second encoding of its shard, times the number of ranks, as it concerns the mean. A coder
    that does not sum (votes) has no second error, and residuals and mean do not add up.
    """

    def __init__(self, spec: CodecSpec, coder: Coder) -> None:
        self.spec = spec
        self._coder = coder

    def average(
        self, tensors: Pieces, mean: Pieces, _states: States, context: Context, /
    ) -> Exchanges:
        """Average by an all-to-all and an allgather (see `Codec.average`)."""
        (vector,), (result,) = tensors, mean
        if not len(vector):
            return
        coder, ranks = self._coder, context.ranks
        shard = shard_elements(len(vector), ranks)
        shards, results = _split(vector, shard, ranks), _split(result, shard, ranks)
        row = coder.layout.payload_bytes(shard)
        random = context.keys()
        # zeros: bytes behind a shorter shard's payload are sent, too
        sent = torch.zeros((ranks, row), dtype=torch.uint8, device=vector.device)
        scale = coder.scale(vector)
        for part, payload in zip(shards, sent, strict=True):
            coder.encode(part, scale, payload, random)
        if context.feedback:
            _subtract(coder, sent, shards)
        exchange = AllToAll(sent)
        yield [exchange]

        own = shards[context.rank]
        own_mean = torch.empty_like(own)
        coder.aggregate(exchange.received, own_mean, sent[0], random)
        if context.feedback and coder.sums:
            own.add_(own_mean, alpha=ranks)
        del own_mean  # before others of the step need theirs
        # what was sent and received in the first exchange is free for the second
        yield [AllGather(sent[0], exchange.received)]

        for part, payload in zip(results, exchange.received, strict=True):
            coder.decode(payload, part)
        if context.feedback and coder.sums:
            own.sub_(results[context.rank], alpha=ranks)


def _subtract(coder: Coder, payloads: Tensor, shards: Sequence[Tensor]) -> None:
    """Subtract from a rank's shards what their payloads decode to."""
    decoded = torch.empty_like(shards[0])
    for part, payload in zip(shards, payloads, strict=True):
        coder.decode(payload, decoded[: len(part)])
        part.sub_(decoded[: len(part)])


def _split(vector: Tensor, shard: int, ranks: int) -> list[Tensor]:
    return [vector[rank * shard : (rank + 1) * shard] for rank in range(ranks)]
