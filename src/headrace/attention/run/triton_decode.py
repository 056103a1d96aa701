"""Attention of few queries over a store on devices that PyTorch calls "cuda", by Triton."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace._native import AttentionFormat
from headrace.attention.run import triton_kernels
from headrace.attention.run.membership import HeadMembership
from headrace.attention.run.rows import StoredRows
from headrace.attention.run.store import KeyValueStore, StorePart

_KERNELS: Any = triton_kernels
_TRITON: Any = triton
_FORMATS = {
    AttentionFormat.INT8: triton_kernels.INT8.value,
    AttentionFormat.INT4: triton_kernels.INT4.value,
    AttentionFormat.INT4_GROUPS: triton_kernels.INT4_GROUPS.value,
}
_TILE = 64
"""Tokens of a tile: those that share units of keys of 4 bits."""
_SPLIT = 512
"""Tokens whose values one program sums."""
_LEAST_ROWS, _MOST_ROWS = 16, 64
_MOST_SUM_BYTES = 16384
"""Rows of a product of matrices, of which Triton multiplies at least 16, and bytes of their numbers
in the model's type: more than these need the shared memory of the largest devices alone."""


class _DeviceMembership:
    """Membership on a device, as the kernels read it."""

    def __init__(self, membership: HeadMembership, key_heads: int, device: torch.device) -> None:
        bounds = np.stack(
            [np.searchsorted(keys, np.arange(key_heads + 1)) for keys in membership.key]
        ).astype(np.int32)
        self.most_scores = int(np.diff(bounds, axis=1).max())
        self.first_score = torch.from_numpy(bounds).to(device)
        self.query_head = torch.from_numpy(membership.query).to(device)
        self.score_of_head = torch.from_numpy(membership.score).to(device)


_memberships: WeakKeyDictionary[HeadMembership, _DeviceMembership] = WeakKeyDictionary()
"""They are the same for every step of a cache."""


def attend_parts(
    query: Tensor,
    store: KeyValueStore,
    membership: HeadMembership,
    scale: float,
    allowed: Tensor | None,
) -> Tensor:
    """Return the attention of the store's newest tokens; see `attend.attend_store`."""
    batch, heads, queries, dim = query.shape
    device = query.device
    shared = _memberships.get(membership)
    if shared is None or shared.query_head.device != device:
        shared = _DeviceMembership(membership, store.key_heads, device)
        _memberships[membership] = shared
    parts = list(store.parts())
    splits = [triton.cdiv(part.tokens, _SPLIT) for part in parts]
    scores = torch.empty(
        batch, membership.query.shape[1], queries, store.tokens, dtype=torch.float32, device=device
    )
    sizes = (batch, heads, queries, sum(splits))
    sums = torch.empty(*sizes, dim, dtype=torch.float32, device=device)
    largest, weights = torch.empty(2, *sizes, dtype=torch.float32, device=device)
    out = query.new_empty(batch, queries, heads, dim)
    query = query.contiguous()
    mask = query if allowed is None else allowed.contiguous().view(torch.uint8)
    first_token = first_split = 0
    masked = mask is not query
    with torch.cuda.device_of(query):  # Triton's kernels run on the current device
        for part, part_splits in zip(parts, splits, strict=True):
            _score_part(query, shared, part, scores, mask, scale, first_token, masked=masked)
            _sum_part(
                query, shared, part, scores, (sums, largest, weights), first_token, first_split
            )
            first_token += part.tokens
            first_split += part_splits
        _KERNELS.join_kernel[(batch * heads * queries,)](
            sums,
            largest,
            weights,
            out,
            sum(splits),
            heads=heads,
            queries=queries,
            dim=dim,
            padded_dim=_padded(dim),
        )
    return out


def _score_part(
    query: Tensor,
    membership: _DeviceMembership,
    part: StorePart,
    scores: Tensor,
    mask: Tensor,
    scale: float,
    first_token: int,
    *,
    masked: bool,
) -> None:
    batch, heads, queries, dim = query.shape
    key_heads = membership.first_score.shape[1] - 1
    _KERNELS.score_kernel[(triton.cdiv(part.tokens, _TILE) * batch * key_heads,)](
        query,
        membership.query_head,
        membership.first_score,
        part.keys.codes,
        _scales(part.keys),
        mask,
        scores,
        scale,
        part.tokens,
        part.first_key,
        part.keys.capacity,
        first_token,
        scores.shape[3],
        heads=heads,
        key_heads=key_heads,
        score_count=scores.shape[1],
        queries=queries,
        dim=dim,
        padded_dim=_padded(dim),
        rows=_rows(membership.most_scores * queries, query),
        tile_tokens=_TILE,
        form=_format(part.keys),
        masked=masked,
        product_type=_product_type(query.dtype),
    )


def _sum_part(
    query: Tensor,
    membership: _DeviceMembership,
    part: StorePart,
    scores: Tensor,
    sums: tuple[Tensor, Tensor, Tensor],
    first_token: int,
    first_split: int,
) -> None:
    batch, heads, queries, dim = query.shape
    value_heads = part.values.codes.shape[1]
    count = heads // value_heads * queries
    rows = _rows(count, query)
    grid = (triton.cdiv(part.tokens, _SPLIT) * batch * value_heads, triton.cdiv(count, rows))
    _KERNELS.value_kernel[grid](
        scores,
        membership.score_of_head,
        part.values.codes,
        _scales(part.values),
        *sums,
        part.tokens,
        part.first_value,
        part.values.capacity,
        first_token,
        scores.shape[3],
        first_split,
        sums[1].shape[3],
        heads=heads,
        value_heads=value_heads,
        score_count=scores.shape[1],
        queries=queries,
        dim=dim,
        padded_dim=_padded(dim),
        rows=rows,
        tile_tokens=_TILE,
        split_tokens=_SPLIT,
        form=_format(part.values),
        element_type=_ELEMENTS[query.dtype],
        product_type=_product_type(query.dtype),
    )


_ELEMENTS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def _product_type(dtype: torch.dtype) -> tl.dtype:
    """Return the type of products' factors: the interpreter multiplies bfloat16 as integers."""
    exact = dtype is torch.bfloat16 and _TRITON.knobs.runtime.interpret
    return tl.float32 if exact else _ELEMENTS[dtype]


def _format(rows: StoredRows) -> int:
    numbers = triton_kernels.NUMBERS.value
    return numbers if rows.format is None else _FORMATS.get(rows.format, numbers)


def _scales(rows: StoredRows) -> Tensor:
    return rows.codes if rows.scales is None else rows.scales


def _padded(dim: int) -> int:
    return max(_LEAST_ROWS, triton.next_power_of_2(dim))


def _rows(count: int, query: Tensor) -> int:
    most = min(_MOST_ROWS, _MOST_SUM_BYTES // (_padded(query.shape[3]) * query.element_size()))
    return max(_LEAST_ROWS, min(triton.next_power_of_2(count), most))
