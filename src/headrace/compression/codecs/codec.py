"""The protocol of codecs.

Values that are not finite have one rule for all codecs. The caller (the `Averager`) checks the sums
of gradients and residuals, and sums one flag over the ranks beside or before its first requests. If
a rank's is set, every rank's mean is NaN, and residuals stay, but for elements that are not finite:
a codec overflows on finite sums that are large enough, and leaves such a residual. A codec that is
called nevertheless does not raise, and its mean is equal on all ranks; it is not finite where the
codec sends every element (none, casts, quantisers), but sparse and random codecs may leave such a
value out.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from headrace.compression.codecs.requests import Context, Exchanges
from headrace.compression.families import CodecSpec

State = dict[str, Any]
"""State of one tensor or piece, kept from step to step: tensors and numbers, by name."""

States = Sequence[State]
Pieces = Sequence[Tensor]
"""Tensors of one call: matrices, or one vector."""


class Codec(Protocol):
    """A codec: averages the ranks' tensors by exchanging encoded values."""

    @property
    def spec(self) -> CodecSpec:
        """Specification of the codec."""
        ...

    def average(
        self, tensors: Pieces, mean: Pieces, states: States, context: Context, /
    ) -> Exchanges:
        """Estimate the mean of the ranks' tensors.

        Parameters
        ----------
        tensors : this rank's tensors, float32 and contiguous: matrices (rows, columns) for a matrix
            codec, else one vector (n,). With ``context.feedback`` they hold afterwards the
            residual, what of them did not reach the mean: summed over the ranks, residuals and the
            ranks' number times the mean equal the tensors before. Without, their content afterwards
            is undefined. Casts (sums are rounded on the way) and votes are exceptions: see there.
        mean : of the same shapes; overwritten with the estimate, equal bit by bit on all ranks. May
            be the same memory as `tensors` if there is no feedback. With feedback it is not written
            before the last exchange is complete: the residuals of before, which are in `tensors`
            beside the gradient, are in it until then, so that a step that fails can be undone.
        states : of each tensor, changed in place; empty at the first call.

        Raises
        ------
        PayloadError : what arrived is not what an encoder makes.
        """
        ...
