"""Codecs that send every element in a type of fewer bits, summed by an allreduce."""

import torch
from torch import Tensor

from headrace.compression.codecs.codec import Pieces, States
from headrace.compression.codecs.requests import AllReduce, Context, Exchanges
from headrace.compression.families import CodecSpec

_BLOCK = 1 << 15


class Plain:
    """The codec ``none``: the sum of float32, divided by the number of ranks."""

    def __init__(self, spec: CodecSpec) -> None:
        self.spec = spec

    def average(
        self, tensors: Pieces, mean: Pieces, _states: States, context: Context, /
    ) -> Exchanges:
        """Average exactly, but for the rounding of sums (see `Codec.average`)."""
        # with feedback in the input's memory: the mean is not to be written before the exchange
        sums = tensors if context.feedback else mean
        for own, total in zip(tensors, sums, strict=True):
            if total.data_ptr() != own.data_ptr():
                total.copy_(own)
        requests = [AllReduce(total) for total in sums if total.numel()]
        if requests:
            yield [*requests]
        for total, result in zip(sums, mean, strict=True):
            torch.div(total, context.ranks, out=result)
            if context.feedback:
                total.zero_()


class Cast:
    """The codecs ``bf16`` and ``fp16``: values rounded to nearest, and summed in that type.

    Values are divided by the number of ranks before they are rounded, so that the sum of fp16
    overflows only where the mean or a rank's value does, as in torch's ``fp16_compress_hook``. What
    overflows is infinite in the mean of all ranks; its residual is 0. With feedback, residuals and
    mean add up to the tensors, but for the rounding of the sums on the way, which no rank knows.
    """

    def __init__(self, spec: CodecSpec) -> None:
        self.spec = spec
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}[spec.family]

    def average(
        self, tensors: Pieces, mean: Pieces, _states: States, context: Context, /
    ) -> Exchanges:
        """Average values of 16 bits (see `Codec.average`)."""
        payloads: list[Tensor] = []
        for own in tensors:
            if context.feedback:
                payload = (own / context.ranks).to(self._type)
                own.sub_(payload, alpha=context.ranks)
                own.nan_to_num_(nan=0, posinf=0, neginf=0)
            else:
                payload = self._quotient(own, context.ranks)
            payloads.append(payload)
        requests = [AllReduce(payload) for payload in payloads if payload.numel()]
        if requests:
            yield [*requests]
        for payload, result in zip(payloads, mean, strict=True):
            result.copy_(payload)

    def _quotient(self, vector: Tensor, ranks: int) -> Tensor:
        """Return a vector's rounded quotient, by blocks that stay in the cache."""
        payload = torch.empty_like(vector, dtype=self._type)
        for part, rounded in zip(
            vector.reshape(-1).split(_BLOCK), payload.view(-1).split(_BLOCK), strict=True
        ):
            rounded.copy_(part.to(torch.float32) / ranks)
        return payload
