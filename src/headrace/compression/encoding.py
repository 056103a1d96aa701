"""The encoding of one parameter in a step: its exchanges, and the mean and residual it leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from headrace.compression.codecs.codec import State
from headrace.compression.codecs.loops import round_with_residual
from headrace.compression.codecs.requests import Exchanges
from headrace.compression.families import CodecSpec
from headrace.compression.traffic import transfers

PIECE = 1 << 20
"""Elements that a vector codec encodes at a time, and so an upper bound of its scratch memory."""

_BLOCK = 1 << 15
"""Elements exchanged at a time between mean and residual: 128 KiB stay in the cache."""


@dataclass(slots=True, kw_only=True)
class Encoding:
    """Encoding of one parameter, or of a run of parameters that keep nothing.

    Attributes
    ----------
    gradient : overwritten with the mean when the step is complete.
    sums : gradient plus residual in float32 and logical order, in the gradient's memory where that
        has this type and order.
    mean : where codecs write the mean, in float32: with feedback the residual's memory, or a copy
        of a residual of 16 bits; else `sums`.
    rounds : number of exchanges that follow each other.
    generators : the codec's, one per piece, and their `states`: copies until the step is complete.
    """

    name: str
    family: str
    gradient: Tensor
    sums: Tensor
    mean: Tensor
    rounds: int
    generators: list[Exchanges]
    states: list[State] = field(default_factory=list[State])

    def deliver(self, residual_type: torch.dtype) -> Tensor | None:
        """Write the mean to the gradient; return the residual, None without feedback."""
        is_wide = self.gradient.dtype is torch.float32
        if self.mean is self.sums:
            self._write(self.sums)
            return None
        if is_wide and residual_type is torch.float32:
            _swap(self.sums, self.mean)
            self._write(self.sums)
            return self.mean
        if is_wide or self.family == "dgc":  # whose residuals hold momentum, too
            residual = self.sums.to(residual_type)
            self.gradient.copy_(self.mean.view(self.gradient.shape))
            return residual
        rounded = self.gradient.contiguous()
        round_with_residual(self.mean, rounded.view(-1), self.sums)
        if rounded is not self.gradient:
            self.gradient.copy_(rounded)
        return self.sums.to(residual_type)

    def leave(self, mean: float) -> None:
        """End the encoding before residual and states change, with a number as the mean."""
        for generator in self.generators:
            generator.close()
        self.gradient.fill_(mean)

    def _write(self, mean: Tensor) -> None:
        """Write the mean to the gradient, if it is in other memory."""
        if self.gradient.dtype is not torch.float32 or not self.gradient.is_contiguous():
            self.gradient.copy_(mean.view(self.gradient.shape))


@cache
def rounds_of(spec: CodecSpec, shape: Sequence[int], ranks: int) -> int:
    """Return the number of a codec's exchanges that follow each other."""
    return 1 + max((transfer.phase for transfer in transfers(spec, [shape], ranks)), default=0)


def until_last(generator: Exchanges, rounds: int) -> Exchanges:
    """Run a codec's first exchanges, and leave what follows them to `Averager.finish`."""
    for _ in range(rounds):
        batch = next(generator, None)
        if batch is None:
            return
        yield batch


def _swap(first: Tensor, second: Tensor) -> None:
    block = _BLOCK if first.is_cpu else PIECE
    scratch = first.new_empty(min(block, first.numel()))
    for left, right in zip(first.split(block), second.split(block), strict=True):
        saved = scratch[: left.numel()].copy_(left)
        left.copy_(right)
        right.copy_(saved)
