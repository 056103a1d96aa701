"""Values on the wire: float32, or rounded to 16 bits."""

import torch
from torch import Tensor

WIRE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Element types of values on the wire, by their names in specifications."""


def to_wire(values: Tensor, wire: torch.dtype, parts: int = 1) -> Tensor:
    """Return values as they are sent; `values` themselves if these are float32.

    Finite values beyond the range of float16 become its largest: error feedback sends the rest
    later, where infinity would make the residual infinite.

    Parameters
    ----------
    parts : divides what is not float32, so that a sum of so many payloads stays in range.
    """
    if wire is torch.float32:
        return values
    scaled = values / parts
    if wire is torch.float16:
        # less by two units of the last place, as sums of rounded values can be larger
        limit = torch.finfo(wire).max * (1 - 2**-9) / parts
        scaled = torch.where(scaled.isfinite(), scaled.clamp_(-limit, limit), scaled)
    return scaled.to(wire)


def from_wire(payload: Tensor, values: Tensor, parts: int = 1) -> None:
    """Write a payload of `to_wire` back to `values`, which it may be."""
    if payload is not values:
        values.copy_(payload).mul_(parts)


def mean_from_wire(total: Tensor, values: Tensor, ranks: int) -> None:
    """Write the mean of payloads that were divided by the number of ranks, if not float32."""
    if total.dtype is torch.float32:
        torch.div(total, ranks, out=values)
    else:
        values.copy_(total)
