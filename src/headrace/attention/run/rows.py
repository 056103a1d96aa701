"""Rows of keys or values as a block stores them, and their codes.

On CPUs the native kernels write and read them. The functions on plain tensors here are for other
devices and types, and the reference that tests compare the kernels with: units are the same,
and so are codes, but where a number lies between two.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace import _native
from headrace._native import AttentionFormat
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import CODE_DIMENSIONS, GROUP_TOKENS, StorageFormat
from headrace.attention.run import pages

MODEL_FORMATS = {
    torch.float32: AttentionFormat.FLOAT32,
    torch.bfloat16: AttentionFormat.BFLOAT16,
}
"""Types that the native kernels read."""
_NATIVE_DIMENSIONS, _MOST_DIMENSIONS = 16, 512
"""Multiple that heads have in the native kernels, and the largest."""

SEGMENT_FIELDS = 11
"""Integers of `native/attention/attention.hpp`'s Segment: tokens, and twice the five of Rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows of so many tokens: [batch, heads, capacity, ..]."""

    format: AttentionFormat | None
    codes: Tensor
    scales: Tensor | None
    capacity: int

    def fields(self, first: int) -> list[int]:
        """Return the native description of the rows from a token on."""
        if self.format is None:
            return [0, 0, 0, self.capacity, first]
        scales = 0 if self.scales is None else self.scales.data_ptr()
        return [int(self.format.value), self.codes.data_ptr(), scales, self.capacity, first]

    def select(self, requests: Tensor) -> "StoredRows":
        """Return rows of some requests, copied."""
        return StoredRows(
            format=self.format,
            codes=pages.selected(self.codes, requests),
            scales=None if self.scales is None else pages.selected(self.scales, requests),
            capacity=self.capacity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """Allocates, stores and loads rows of one format.

    Attributes
    ----------
    native : of the kernels; None: a type that they do not read, stored as it is.
    """

    native: AttentionFormat | None
    dtype: torch.dtype

    def allocate(
        self, *, batch: int, heads: int, capacity: int, dim: int, device: torch.device
    ) -> StoredRows:
        """Return rows for so many tokens, whose numbers are anything."""
        shape = (batch, heads, capacity)
        scales: Tensor | None = None
        match self.native:
            case AttentionFormat.INT8:
                codes = pages.allocated((*shape, dim), torch.int8, device)
                scales = pages.allocated(shape, torch.float32, device)
            case AttentionFormat.INT4:
                codes = pages.allocated((*shape, dim // 2), torch.uint8, device)
                scales = pages.allocated((*shape, 2), torch.bfloat16, device)
            case AttentionFormat.INT4_GROUPS:
                codes = pages.allocated((*shape, dim // 2), torch.uint8, device)
                groups = (batch, heads, capacity // GROUP_TOKENS, 2, dim)
                scales = pages.allocated(groups, torch.bfloat16, device)
            case _:
                codes = pages.allocated((*shape, dim), self.dtype, device)
        return StoredRows(format=self.native, codes=codes, scales=scales, capacity=capacity)

    def store(self, rows: StoredRows, first: int, numbers: Tensor) -> None:
        """Store [batch, heads, tokens, dim] from a token on; of keys of 4 bits whole groups."""
        if self.native is not None and is_native(numbers):
            source: Any = numbers if numbers.stride(-1) == 1 else numbers.contiguous()
            _native.attention_store(source, np.array(rows.fields(first), np.int64))
            return
        tokens = slice(first, first + numbers.shape[2])
        match self.native:
            case AttentionFormat.INT8:
                assert rows.scales is not None
                rows.codes[:, :, tokens], rows.scales[:, :, tokens] = int8_codes(numbers)
            case AttentionFormat.INT4:
                assert rows.scales is not None
                codes, scales = int4_codes(numbers, dim=-1)
                rows.codes[:, :, tokens] = codes
                rows.scales[:, :, tokens] = scales.squeeze(-1).movedim(0, -1)
            case AttentionFormat.INT4_GROUPS:
                assert rows.scales is not None
                codes, scales = int4_codes(_in_groups(numbers), dim=-2)
                rows.codes[:, :, tokens] = codes.flatten(2, 3)
                groups = slice(first // GROUP_TOKENS, tokens.stop // GROUP_TOKENS)
                rows.scales[:, :, groups] = scales.squeeze(-2).movedim(0, -2)
            case _:
                rows.codes[:, :, tokens] = numbers

    def load(self, rows: StoredRows, tokens: int, dtype: torch.dtype, *, first: int = 0) -> Tensor:
        """Return the numbers of consecutive tokens: a view where they have the model's type.

        Parameters
        ----------
        first : of the tokens; of keys of 4 bits the first of a group.
        """
        part = slice(first, first + tokens)
        codes = rows.codes[:, :, part]
        match self.native:
            case AttentionFormat.INT8:
                assert rows.scales is not None
                return (codes * rows.scales[:, :, part, None]).to(dtype)
            case AttentionFormat.INT4:
                assert rows.scales is not None
                unit, zero = rows.scales[:, :, part].float().unbind(-1)
                return (spread(codes) * unit[..., None] + zero[..., None]).to(dtype)
            case AttentionFormat.INT4_GROUPS:
                assert rows.scales is not None
                groups = slice(first // GROUP_TOKENS, part.stop // GROUP_TOKENS)
                unit, zero = rows.scales[:, :, groups].float().unbind(-2)
                numbers = _in_groups(spread(codes)) * unit[..., None, :] + zero[..., None, :]
                return numbers.flatten(2, 3).to(dtype)
            case _:
                return codes


def is_native(tensor: Tensor) -> bool:
    """Return whether the native kernels read rows of a tensor's type and last dimension."""
    dim = tensor.shape[-1]
    reads_heads = dim % _NATIVE_DIMENSIONS == 0 and dim <= _MOST_DIMENSIONS
    return tensor.device.type == "cpu" and tensor.dtype in MODEL_FORMATS and reads_heads


def key_format(form: StorageFormat, dtype: torch.dtype) -> RowFormat:
    """Return how keys are stored."""
    return _row_format(form, AttentionFormat.INT4_GROUPS, dtype)


def value_format(form: StorageFormat, dtype: torch.dtype) -> RowFormat:
    """Return how values are stored."""
    return _row_format(form, AttentionFormat.INT4, dtype)


def _row_format(form: StorageFormat, int4: AttentionFormat, dtype: torch.dtype) -> RowFormat:
    formats = {StorageFormat.INT8: AttentionFormat.INT8, StorageFormat.INT4: int4}
    return RowFormat(native=formats.get(form, MODEL_FORMATS.get(dtype)), dtype=dtype)


def check_dim(form: StorageFormat, dim: int) -> None:
    """Refuse dimensions that codes of 4 bits do not pack.

    Raises
    ------
    AttentionError
    """
    if form is StorageFormat.INT4 and dim % CODE_DIMENSIONS:
        raise AttentionError(
            f"heads have {dim} dimensions: codes of 4 bits need a multiple of "
            f"{CODE_DIMENSIONS}; use 8 bits"
        )


def int8_codes(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and the unit of each row; a row with a NaN has a unit of NaN."""
    numbers = numbers.float()
    unit = numbers.abs().amax(-1) / 127
    inverse = torch.where(unit > 0, 1 / unit, 0)
    codes = (numbers * inverse[..., None]).nan_to_num().round()
    return codes.to(torch.int8), unit


def int4_codes(numbers: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return packed codes, and unit and number of code 0 along `dim`, as [2, ..] of bfloat16."""
    numbers = numbers.float()
    low, high = numbers.amin(dim, keepdim=True), numbers.amax(dim, keepdim=True)
    zero = _floor_bfloat16(low)
    unit = (high / 15 - zero / 15).bfloat16().float()
    scaled = torch.where(unit > 0, (numbers - zero) / unit, 0).nan_to_num()
    codes = scaled.round().clamp(0, 15).to(torch.uint8).unflatten(-1, (-1, 2, CODE_DIMENSIONS // 2))
    packed = (codes[..., 0, :] | codes[..., 1, :] << 4).flatten(-2)
    return packed, torch.stack([unit, zero]).bfloat16()


def _floor_bfloat16(numbers: Tensor) -> Tensor:
    """Return the largest bfloat16 that is not above, as float32."""
    bits = numbers.contiguous().view(torch.int32)
    beyond = ((bits < 0) & (bits & 0xFFFF != 0)).int()
    return ((bits & ~0xFFFF) + beyond * 0x10000).view(torch.float32)


def spread(packed: Tensor) -> Tensor:
    """Return codes of 4 bits, one a float32."""
    chunks = packed.unflatten(-1, (-1, CODE_DIMENSIONS // 2))
    return torch.stack([chunks & 15, chunks >> 4], dim=-2).flatten(-3).float()


def _in_groups(numbers: Tensor) -> Tensor:
    return numbers.unflatten(2, (-1, GROUP_TOKENS))
