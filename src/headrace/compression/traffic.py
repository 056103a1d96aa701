"""Bytes on the wire of every codec, and the memory of its payloads: pure functions.

They hold for one call of a codec's `average`: a vector codec gets the elements of all tensors as
one vector. The codecs take the layout of their payloads from here, and tests compare the requests
that they yield with `transfers`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import low_rank, matrix_shape

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadTransfer:
    """One collective that a codec needs.

    Attributes
    ----------
    collective : ``allreduce``, ``all_to_all`` or ``allgather``.
    payload_bytes : bytes of one rank's tensor (all rows of an all-to-all).
    phase : those of one phase can be in flight together; phases follow each other.
    """

    collective: str
    payload_bytes: int
    phase: int = 0


def transfers(spec: CodecSpec, shapes: Shapes, ranks: int) -> tuple[PayloadTransfer, ...]:
    """Return the collectives of one call for tensors of these shapes, in the codec's order."""
    shapes = [shape for shape in shapes if math.prod(shape)]
    family = TRANSFERS.get(spec.family)
    if family is None:
        raise CompressionError(f"codec {spec} has no traffic, needs one of {', '.join(TRANSFERS)}")
    return family(spec, shapes, ranks) if shapes else ()


def sent_bytes(transfer: PayloadTransfer, ranks: int) -> float:
    """Return the bytes out of a rank, with algorithms that send the fewest.

    An allreduce sends 2(n-1)/n of the payload, an all-to-all (n-1)/n, an allgather n-1 times.
    """
    factor = {"allreduce": 2 / ranks, "all_to_all": 1 / ranks, "allgather": 1}
    return (ranks - 1) * factor[transfer.collective] * transfer.payload_bytes


def allreduce_bytes(payload_bytes: int, ranks: int) -> float:
    """Return the bytes out of a rank in an allreduce."""
    return sent_bytes(PayloadTransfer(collective="allreduce", payload_bytes=payload_bytes), ranks)


def buffer_bytes(spec: CodecSpec, shapes: Shapes, ranks: int) -> int:
    """Return the bytes of payloads, sent and received, that a rank holds at most at once."""
    if spec.family == "none":  # summed in the tensors of the mean
        return 0
    copies = {"allreduce": 1, "all_to_all": 2, "allgather": ranks + 1}
    phases: dict[int, int] = {}
    for transfer in transfers(spec, shapes, ranks):
        phases[transfer.phase] = (
            phases.get(transfer.phase, 0) + copies[transfer.collective] * transfer.payload_bytes
        )
    return max(phases.values(), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLayout:
    """Payload of encoded elements: float32 numbers of every bucket, then codes of `bits` bits.

    Attributes
    ----------
    bits : of each element's code.
    numbers : float32 numbers of each bucket.
    bucket : elements of a bucket, a multiple of 8; the default is one bucket in all.
    """

    bits: int
    numbers: int
    bucket: int = 1 << 62

    def header_bytes(self, elements: int) -> int:
        """Return the bytes in front of the codes."""
        return 4 * self.numbers * -(-elements // self.bucket)

    def code_bytes(self, elements: int) -> int:
        """Return the bytes of the codes."""
        return -(-elements * self.bits // 8)

    def payload_bytes(self, elements: int) -> int:
        """Return the bytes in all: a multiple of 8, so that rows of payloads are aligned."""
        return -(-(self.header_bytes(elements) + self.code_bytes(elements)) // 8) * 8


PAYLOAD_LAYOUTS: Mapping[str, Callable[[CodecSpec], PayloadLayout]] = {
    "fp8": lambda _spec: PayloadLayout(bits=8, numbers=1, bucket=1024),
    "minmax": lambda spec: PayloadLayout(bits=int(spec.parameter), numbers=2, bucket=1024),  # CGX's
    "qsgd": lambda spec: PayloadLayout(
        bits=int(spec.parameter), numbers=1, bucket=512
    ),  # the paper's
    "terngrad": lambda _spec: PayloadLayout(bits=2, numbers=1, bucket=1024),
    "sign": lambda _spec: PayloadLayout(bits=1, numbers=1),
}
"""Payloads of the codecs that are sharded, by family."""


def shard_elements(elements: int, ranks: int) -> int:
    """Return the elements of a shard: a multiple of 8; the last shards may be shorter or empty."""
    return -(-elements // (8 * ranks)) * 8


def _elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def kept_elements(spec: CodecSpec, elements: int) -> int:
    """Return the number of elements that a sparse codec sends at most: 1 or more."""
    return max(1, min(elements, round(spec.parameter * elements)))


def entries_bytes(spec: CodecSpec, elements: int) -> int:
    """Return the bytes of a gathered payload: a number, then an index and a value of each entry.

    A multiple of 8, so that rows of payloads are aligned.
    """
    entries = kept_elements(spec, elements) * (4 + spec.wire_bytes)
    return 8 + -(-entries // 8) * 8


def _gathered(spec: CodecSpec, shapes: Shapes, _ranks: int) -> tuple[PayloadTransfer, ...]:
    """Return the transfer of the largest elements, with their indices."""
    payload = entries_bytes(spec, _elements(shapes))
    return (PayloadTransfer(collective="allgather", payload_bytes=payload),)


def _drawn(spec: CodecSpec, shapes: Shapes, _ranks: int) -> tuple[PayloadTransfer, ...]:
    """Return the transfer of elements that all ranks draw alike."""
    payload = spec.wire_bytes * kept_elements(spec, _elements(shapes))
    return (PayloadTransfer(collective="allreduce", payload_bytes=payload),)


def _factors(spec: CodecSpec, shapes: Shapes) -> tuple[int, int, int]:
    """Return the bytes of factors on the matrices' shorter and longer sides, and of the uncoded."""
    shorter = longer = uncoded = 0
    for shape in shapes:
        rows, columns = matrix_shape(shape)
        rank = low_rank(rows, columns, int(spec.parameter))
        shorter += spec.wire_bytes * rank * min(rows, columns)
        longer += spec.wire_bytes * rank * max(rows, columns)
        uncoded += 0 if rank else spec.wire_bytes * rows * columns
    return shorter, longer, uncoded


def _powersgd(spec: CodecSpec, shapes: Shapes, _ranks: int) -> tuple[PayloadTransfer, ...]:
    shorter, longer, uncoded = _factors(spec, shapes)
    phases = (shorter + uncoded, longer) if longer else (uncoded,)
    return tuple(
        PayloadTransfer(collective="allreduce", payload_bytes=payload_bytes, phase=phase)
        for phase, payload_bytes in enumerate(phases)
    )


def _atomo(spec: CodecSpec, shapes: Shapes, _ranks: int) -> tuple[PayloadTransfer, ...]:
    shorter, longer, uncoded = _factors(spec, shapes)
    asked = (("allgather", shorter + longer), ("allreduce", uncoded))
    return tuple(PayloadTransfer(collective=c, payload_bytes=b) for c, b in asked if b)


def _cast(bytes_each: int) -> Callable[[CodecSpec, Shapes, int], tuple[PayloadTransfer, ...]]:
    """Return the transfers of values of so many bytes, summed tensor by tensor."""

    def transfers_of(_spec: CodecSpec, shapes: Shapes, _ranks: int) -> tuple[PayloadTransfer, ...]:
        return tuple(
            PayloadTransfer(collective="allreduce", payload_bytes=bytes_each * math.prod(shape))
            for shape in shapes
        )

    return transfers_of


def _sharded(spec: CodecSpec, shapes: Shapes, ranks: int) -> tuple[PayloadTransfer, ...]:
    """Return the transfers of shards that are encoded, aggregated and encoded again."""
    layout = PAYLOAD_LAYOUTS[spec.family](spec)
    shard = layout.payload_bytes(shard_elements(_elements(shapes), ranks))
    return (
        PayloadTransfer(collective="all_to_all", payload_bytes=ranks * shard, phase=0),
        PayloadTransfer(collective="allgather", payload_bytes=shard, phase=1),
    )


TRANSFERS: Mapping[str, Callable[[CodecSpec, Shapes, int], tuple[PayloadTransfer, ...]]] = {
    "none": _cast(4),
    "bf16": _cast(2),
    "fp16": _cast(2),
    **dict.fromkeys(PAYLOAD_LAYOUTS, _sharded),
    **dict.fromkeys(("topk", "mstopk", "dgc"), _gathered),
    "randomk": _drawn,
    "powersgd": _powersgd,
    "atomo": _atomo,
}
"""Transfers of one call, by family; of shapes that have elements."""
