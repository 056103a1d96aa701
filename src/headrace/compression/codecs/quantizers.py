"""Families of codecs with a few bits per element, as coders of the sharded scheme."""

from abc import ABC, abstractmethod
from random import Random

import torch
from torch import Tensor

from headrace.compression.codecs import loops
from headrace.compression.families import CodecSpec
from headrace.compression.traffic import PAYLOAD_LAYOUTS, PayloadLayout


def _numbers(payload: Tensor, layout: PayloadLayout, elements: int) -> Tensor:
    """Return the view of a payload's float32 numbers, (buckets, numbers)."""
    header = payload[: layout.header_bytes(elements)]
    return header.view(torch.float32).view(-1, layout.numbers)


def _codes(payload: Tensor, layout: PayloadLayout, elements: int) -> Tensor:
    """Return the view of a payload's codes."""
    begin = layout.header_bytes(elements)
    return payload[begin : begin + layout.code_bytes(elements)]


class _Summed(ABC):
    """Coders whose aggregate is the mean of the decoded values, encoded again."""

    sums = True

    def __init__(self, spec: CodecSpec) -> None:
        self.layout = PAYLOAD_LAYOUTS[spec.family](spec)

    def scale(self, vector: Tensor) -> Tensor:
        """Return nothing: each bucket has a scale of its own."""
        return vector[:0]

    @abstractmethod
    def encode(self, vector: Tensor, scale: Tensor, payload: Tensor, random: Random, /) -> None:
        """Encode (see `Coder`)."""

    @abstractmethod
    def decode(self, payload: Tensor, out: Tensor, add: bool = False) -> None:
        """Decode (see `Coder`), or add the decoded values."""

    def aggregate(self, payloads: Tensor, mean: Tensor, payload: Tensor, random: Random) -> None:
        """Decode, average in the order of ranks, and encode."""
        for rank, encoded in enumerate(payloads):
            self.decode(encoded, mean, add=rank > 0)
        mean.div_(len(payloads))
        self.encode(mean, self.scale(mean), payload, random)


class MinMax(_Summed):
    """Bucketed min-max quantisation of 2 to 8 bits.

    Each bucket of 1,024 elements is rounded to 2^bits equally spaced values between its minimum
    and maximum, as in CGX (Markov et al., 2022, "CGX: Adaptive System Support for
    Communication-Efficient Deep Learning"), but to nearest: what is rounded off is in the residual.
    """

    def encode(self, vector: Tensor, _scale: Tensor, payload: Tensor, _random: Random) -> None:
        """Encode (see `Coder`)."""
        layout, n = self.layout, len(vector)
        codes, ranges = _codes(payload, layout, n), _numbers(payload, layout, n)
        loops.quantize(vector, layout.bits, layout.bucket, codes, ranges)

    def decode(self, payload: Tensor, out: Tensor, add: bool = False) -> None:
        """Decode (see `Coder`), or add the decoded values."""
        layout, n = self.layout, len(out)
        codes, ranges = _codes(payload, layout, n), _numbers(payload, layout, n)
        loops.dequantize(codes, ranges, layout.bits, layout.bucket, out, add)


class Float8(_Summed):
    """float8 e4m3 (4 bits of exponent, 3 of mantissa), rounded to nearest.

    A bucket of 1,024 elements is scaled so that its largest magnitude becomes 448, the type's
    largest. In tiny buckets the scale is limited to float32's smallest normal number. (Micikevicius
    et al., 2022, "FP8 Formats for Deep Learning", has one scale per tensor.)
    """

    def encode(self, vector: Tensor, _scale: Tensor, payload: Tensor, _random: Random) -> None:
        """Encode (see `Coder`)."""
        layout, n = self.layout, len(vector)
        codes, scales = _codes(payload, layout, n), _numbers(payload, layout, n)
        loops.encode_float8(vector, layout.bucket, codes, scales.view(-1))

    def decode(self, payload: Tensor, out: Tensor, add: bool = False) -> None:
        """Decode (see `Coder`), or add the decoded values."""
        layout, n = self.layout, len(out)
        codes, scales = _codes(payload, layout, n), _numbers(payload, layout, n)
        loops.decode_float8(codes, scales.view(-1), layout.bucket, out, add)


class Stochastic(_Summed):
    """QSGD and TernGrad: levels of a bucket's norm, rounded up or down at random without bias.

    With s = 2^(bits-1) - 1 levels, an element x is sent as sign(x) * level and decoded to
    ``norm * sign(x) * level / s``, where level is one of the two whole numbers beside
    ``s |x| / norm`` and has this expectation.

    - ``qsgd``: the norm is the Euclidean one of 512 elements (Alistarh et al., 2017, "QSGD",
      equation 3.1 with buckets), and levels have a fixed number of bits instead of Elias codes.
    - ``terngrad``: one level of the largest magnitude of 1,024 elements (Wen et al., 2017,
      "TernGrad", equations 1 and 2; buckets stand for layers), without gradient clipping, which
      is biased.

    The mean is encoded again by its owner with random numbers of its own: also unbiased.
    """

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self._euclidean = spec.family == "qsgd"

    def encode(self, vector: Tensor, _scale: Tensor, payload: Tensor, random: Random) -> None:
        """Encode (see `Coder`)."""
        layout, n, key = self.layout, len(vector), random.getrandbits(64)
        codes, norms = _codes(payload, layout, n), _numbers(payload, layout, n).view(-1)
        loops.encode_levels(vector, layout.bits, layout.bucket, self._euclidean, key, codes, norms)

    def decode(self, payload: Tensor, out: Tensor, add: bool = False) -> None:
        """Decode (see `Coder`), or add the decoded values."""
        layout, n = self.layout, len(out)
        codes, norms = _codes(payload, layout, n), _numbers(payload, layout, n).view(-1)
        loops.decode_levels(codes, norms, layout.bits, layout.bucket, out, add)


class SignVote:
    """SignSGD with majority vote (Bernstein et al., 2018), with a scale.

    A rank sends the signs of its vector, and the mean of its elements' magnitudes. The mean is
    estimated as the majority's signs (a tie is positive) times the mean of the ranks' scales, so
    that it has a gradient's magnitude. A rank's residual is what its own scaled signs leave
    (EF-SignSGD, Karimireddy et al., 2019): votes lose by how much a sign won, which no residual
    holds, so that residuals and mean add up to what was given on one rank or equal ranks only.
    """

    sums = False

    def __init__(self, spec: CodecSpec) -> None:
        self.layout = PAYLOAD_LAYOUTS[spec.family](spec)

    def scale(self, vector: Tensor) -> Tensor:
        """Return the mean magnitude."""
        # block by block: without a copy of the vector, and sums of few elements are accurate
        return torch.stack([part.abs().sum() for part in vector.split(1 << 16)]).sum() / len(vector)

    def encode(self, vector: Tensor, scale: Tensor, payload: Tensor, _random: Random) -> None:
        """Encode (see `Coder`)."""
        layout, n = self.layout, len(vector)
        _numbers(payload, layout, n).copy_(scale)
        loops.pack_signs(vector, _codes(payload, layout, n))

    def decode(self, payload: Tensor, out: Tensor) -> None:
        """Decode (see `Coder`)."""
        layout, n = self.layout, len(out)
        if n:
            loops.unpack_signs(_codes(payload, layout, n), _numbers(payload, layout, n), out)

    def aggregate(self, payloads: Tensor, mean: Tensor, payload: Tensor, _random: Random) -> None:
        """Vote by bits, and average the scales."""
        layout, n = self.layout, len(mean)
        begin = layout.header_bytes(n)
        end = begin + layout.code_bytes(n)
        loops.majority(payloads[:, begin:end], payload[begin:end])
        scales = payloads[:, :begin].contiguous().view(torch.float32)
        payload[:begin].view(torch.float32).copy_(scales.mean(0))
