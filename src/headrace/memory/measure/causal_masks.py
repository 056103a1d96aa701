"""Masks of torch's encoders and decoders in a trace, which has no values to compare.

`nn.TransformerEncoder`, `nn.TransformerDecoder` and `nn.Transformer` look whether a mask is causal,
where calls do not say so, and then leave it to attention's kernel. Captured steps apply each mask
as it is: what is computed differs by rounding alone.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor
from torch.nn.modules import transformer


@contextmanager
def masks_as_they_are() -> Generator[None]:
    """Take a mask for a causal one only where a call says so."""
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = _is_stated
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect


def _is_stated(
    mask: Tensor | None,  # noqa: ARG001
    is_causal: bool | None = None,
    size: int | None = None,  # noqa: ARG001
) -> bool:
    return is_causal is True
