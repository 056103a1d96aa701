"""Attention of heads that share probabilities: over a store, and of a prompt.

Shapes: query [batch, query heads, queries, dim]; output [batch, queries, heads, dim].
"""

import logging
import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from headrace import _native
from headrace.attention.run.membership import HeadMembership
from headrace.attention.run.rows import is_native
from headrace.attention.run.store import KeyValueStore

NATIVE_QUERIES = 16
"""Most queries of a call of the native kernels, which read keys and values once for four of them;
for more, products of matrices read them less often."""
_TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_BLOCK_QUERIES = 128
"""Of a prompt, whose scores stay in a processor's cache."""
_SHARING_CLUSTERS = 0.6
"""Largest share of representatives of which a prompt's scores are shared on CPUs. For more the
stock kernel is faster that computes the scores of all heads (section `prompt` of the benchmark)."""
_SHARING_SCORES = 1 << 14
"""Fewest scores of a head that are worth a call of PyTorch's products for each of its members."""
_COPIED_HEADS = 8
"""Whose queries and keys are copied at a time for the stock kernel: memory that is written again
needs no new pages, which cost more than the copies. At least one for each thread."""
_log = logging.getLogger(__name__)


def attend_store(
    query: Tensor,
    store: KeyValueStore,
    membership: HeadMembership,
    *,
    scale: float,
    allowed: Tensor | None = None,
) -> Tensor:
    """Return the attention of the store's newest tokens over all of its tokens.

    Parameters
    ----------
    query : of the newest tokens.
    allowed : bool [batch, queries, tokens] of the tokens that a query may see; None: those up to
        its own. A query that may see none gets zeros.
    """
    if query.device.type == "cuda" and query.dtype in _TRITON_TYPES and _has_triton():
        from headrace.attention.run.triton_decode import attend_parts

        return attend_parts(query, store, membership, scale, allowed)
    if not is_native(query):
        keys, values = store.load()
        return attend_shared(query, keys, values, membership, scale=scale, allowed=allowed)
    batch, _, queries, dim = query.shape
    out = query.new_empty(batch, queries, membership.score.shape[1], dim)
    tensors: Any = (query.contiguous(), out, None if allowed is None else allowed.contiguous())
    _native.attention_attend(
        tensors[0],
        membership.query,
        membership.key,
        membership.score,
        store.segments(),
        store.key_heads,
        store.value_heads,
        scale,
        tensors[2],
        torch.get_num_threads(),
        tensors[1],
    )
    return out


@cache
def _has_triton() -> bool:
    """Return whether Triton is installed, as it is with PyTorch for CUDA."""
    return find_spec("triton") is not None


def attend_prompt(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    membership: HeadMembership,
    *,
    scale: float,
    allowed: Tensor | None = None,
) -> Tensor:
    """Return the attention of many queries, the newest of the keys' tokens.

    The stock kernel computes it where that is faster; see `stock_reason`.
    """
    reason = stock_reason(query, keys, membership)
    if reason is not None:
        _log.debug("a prompt of %d tokens has the scores of all heads: %s", query.shape[2], reason)
    attend = attend_shared if reason is None else attend_stock
    return attend(query, keys, values, membership, scale=scale, allowed=allowed)


def stock_reason(query: Tensor, keys: Tensor, membership: HeadMembership) -> str | None:
    """Return why the stock kernel is faster for a prompt, although it computes all heads' scores.

    None: representatives' scores alone are computed, which is faster.
    """
    if query.device.type != "cpu":
        return "the device's kernels are PyTorch's"
    if query.dtype != torch.float32 and _has_matrix_units():
        return "the processor multiplies matrices of bfloat16 in units of their own"
    if membership.query.shape[1] > _SHARING_CLUSTERS * membership.score.shape[1]:
        return f"more than {_SHARING_CLUSTERS:z.0%} of the heads represent"
    if query.shape[2] * keys.shape[2] < _SHARING_SCORES:
        return "the prompt is short"
    return None


@cache
def _has_matrix_units() -> bool:
    """Return whether the processor multiplies matrices of bfloat16 in units of their own."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


def attend_shared(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    membership: HeadMembership,
    *,
    scale: float,
    allowed: Tensor | None = None,
) -> Tensor:
    """Compute the scores of representatives alone, with products of matrices in float32.

    Parameters
    ----------
    keys : [batch, kept heads, tokens, dim].
    values : [batch, heads of values, tokens, dim].
    """
    batch, _, queries, dim = query.shape
    heads = membership.score.shape[1]
    group = heads // values.shape[1]
    out = query.new_empty(batch, queries, heads, dim, dtype=torch.float32)
    for request in range(batch):
        for score in range(membership.query.shape[1]):
            members = np.flatnonzero(membership.score[request] == score)
            if len(members):
                _attend_cluster(
                    query[request, membership.query[request, score]].float() * scale,
                    keys[request, membership.key[request, score]].float(),
                    [values[request, head // group].float() for head in members],
                    [out[request, :, head] for head in members],
                    None if allowed is None else allowed[request],
                )
    return out.to(query.dtype)


def _attend_cluster(
    query: Tensor,
    keys: Tensor,
    values: Sequence[Tensor],
    outputs: Sequence[Tensor],
    allowed: Tensor | None,
) -> None:
    """Weight every member's values by the representative's probabilities, some queries at a time.

    Parameters
    ----------
    query : [queries, dim]; keys, values: [tokens, dim]; outputs: [queries, dim] to be written.
    allowed : [queries, tokens]; None: causal, so that later tokens are not read.
    """
    queries, tokens = len(query), len(keys)
    for first in range(0, queries, _BLOCK_QUERIES):
        last = min(first + _BLOCK_QUERIES, queries)
        seen = tokens if allowed is not None else tokens - queries + last
        scores = query[first:last] @ keys[:seen].T
        if allowed is None:
            later = torch.ones(last - first, last - first, dtype=torch.bool, device=query.device)
            scores[:, seen - (last - first) :].masked_fill_(later.triu(1), -math.inf)
            probabilities = torch.softmax(scores, dim=-1)
        else:
            visible = allowed[first:last]
            probabilities = torch.softmax(scores.masked_fill_(~visible, -math.inf), dim=-1)
            probabilities.masked_fill_(~visible.any(-1, keepdim=True), 0)
        for value, output in zip(values, outputs, strict=True):
            torch.mm(probabilities, value[:seen], out=output[first:last])


def attend_stock(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    membership: HeadMembership,
    *,
    scale: float,
    allowed: Tensor | None = None,
) -> Tensor:
    """Compute the scores of every head, from its representative's query and keys."""
    batch = len(membership.score)
    rows = np.arange(batch)[:, None]
    query_heads = membership.query[rows, membership.score]
    key_heads = membership.key[rows, membership.score]
    heads = query_heads.shape[1]
    if values.shape[1] < heads:
        values = values.repeat_interleave(heads // values.shape[1], dim=1)
    queries, tokens = query.shape[2], keys.shape[2]
    visible = allowed
    if visible is None and queries != tokens:
        newest = torch.ones(queries, tokens, dtype=torch.bool, device=query.device)
        visible = newest.tril(tokens - queries).expand(batch, -1, -1)

    def attend(requests: slice, of: slice) -> Tensor:
        return functional.scaled_dot_product_attention(
            heads_of(query[requests], query_heads[requests, of]),
            heads_of(keys[requests], key_heads[requests, of]),
            values[requests, of],
            attn_mask=None if visible is None else visible[requests, None],
            is_causal=visible is None,
            scale=scale,
        ).transpose(1, 2)

    copied = not (_are_all(query, query_heads) and _are_all(keys, key_heads))
    if query.device.type == "cpu" and copied:
        out = query.new_empty(batch, queries, heads, values.shape[3])
        size = max(_COPIED_HEADS, torch.get_num_threads())
        for request in range(batch):
            for first in range(0, heads, size):
                requests, of = slice(request, request + 1), slice(first, first + size)
                out[requests, :, of] = attend(requests, of)
    else:
        out = attend(slice(None), slice(None))
    if visible is not None:
        out = out.masked_fill(~visible.any(-1)[:, :, None, None], 0)
    return out


def heads_of(tensor: Tensor, heads: NDArray[np.int32]) -> Tensor:
    """Return some heads of a tensor [batch, heads, ..]: itself where they are all, in order."""
    if _are_all(tensor, heads):
        return tensor
    index = torch.from_numpy(heads).to(tensor.device, torch.int64)
    selected = tensor.new_empty(len(heads), heads.shape[1], *tensor.shape[2:])
    for request, of_request in enumerate(index):  # `gather` reads an index for every number
        torch.index_select(tensor[request], 0, of_request, out=selected[request])
    return selected


def _are_all(tensor: Tensor, heads: NDArray[np.int32]) -> bool:
    """Return whether heads are all of a tensor's, in order."""
    count = tensor.shape[1]
    return heads.shape[1] == count and bool((heads == np.arange(count)).all())
