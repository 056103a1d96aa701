"""Kernels of attention of few queries over a store, in Triton's language.

Three kernels, all of them over tiles of tokens in parallel (FlashDecoding's split of the sequence):

1. scores of representatives alone: each stored key is read once, for all queries that use it;
2. sums of values weighted by these scores: each value is read once, for all heads and queries that
   share it, whose clusters' scores are read instead of computed;
3. the splits' sums joined by their largest scores.

Codes of 8 and 4 bits are converted in registers: units of keys of 4 bits are multiplied into the
queries, those of values into the probabilities. Factors of products of matrices are of the model's
type, in which codes are exact, and sums are float32.

Of the arguments, tensors are pointers to contiguous memory. Constants of all kernels: ``heads`` of
queries, ``queries`` of each, ``dim`` numbers of a head and ``padded_dim``, the next power of two.
"""

# Triton types its language, and takes branches on constants, when it compiles a kernel
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false
# pyright: reportArgumentType=false

import triton
import triton.language as tl

from headrace.attention.plan.formats import CODE_DIMENSIONS, GROUP_TOKENS

NUMBERS, INT8, INT4, INT4_GROUPS = (tl.constexpr(number) for number in range(4))
"""Formats of rows: numbers of the model's type, and those of `headrace._native.AttentionFormat`."""
_CHANGING = (
    "tokens",
    "first_key",
    "first_value",
    "first_token",
    "all_tokens",
    "first_split",
    "all_splits",
)
"""Arguments that grow with a cache: kernels are not compiled again for multiples of 16."""
_CHUNK, _GROUP = tl.constexpr(CODE_DIMENSIONS), tl.constexpr(GROUP_TOKENS)


@triton.jit(do_not_specialize=_CHANGING)
def score_kernel(
    query,
    query_head,
    first_score,
    codes,
    scales,
    allowed,
    scores,
    scale,
    tokens,
    first_key,
    capacity,
    first_token,
    all_tokens,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    score_count: tl.constexpr,
    queries: tl.constexpr,
    dim: tl.constexpr,
    padded_dim: tl.constexpr,
    rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    form: tl.constexpr,
    masked: tl.constexpr,
    product_type: tl.constexpr,
):
    """Write the scores [batch, scores, queries, all tokens] of a tile of one head of keys."""
    element_type: tl.constexpr = query.dtype.element_ty
    token = tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens)
    request = (tl.program_id(1) // key_heads).to(tl.int64)
    key_head = tl.program_id(1) % key_heads
    stored = first_key + token
    valid = token < tokens
    first_row = (request * key_heads + key_head) * capacity
    first = tl.load(first_score + request * (key_heads + 1) + key_head)
    count = (tl.load(first_score + request * (key_heads + 1) + key_head + 1) - first) * queries
    channel = tl.arange(0, padded_dim)
    if form == INT4_GROUPS:
        half = tl.arange(0, padded_dim // 2)
        low = half // (_CHUNK // 2) * _CHUNK + half % (_CHUNK // 2)
        high = low + _CHUNK // 2
        used = half < dim // 2
        packed = tl.load(
            codes + (first_row + stored)[:, None] * (dim // 2) + half[None, :],
            mask=valid[:, None] & used[None, :],
            other=0,
        )
        # a tile begins with a group
        group = (first_key + tl.program_id(0) * tile_tokens) // _GROUP
        units = scales + ((request * key_heads + key_head) * (capacity // _GROUP) + group) * 2 * dim
        low_unit = tl.load(units + low, mask=used, other=0).to(tl.float32)
        high_unit = tl.load(units + high, mask=used, other=0).to(tl.float32)
        low_zero = tl.load(units + dim + low, mask=used, other=0).to(tl.float32)
        high_zero = tl.load(units + dim + high, mask=used, other=0).to(tl.float32)
        low_codes = tl.trans((packed & 15).to(product_type))
        high_codes = tl.trans((packed >> 4).to(product_type))
    else:
        numbers = tl.load(
            codes + (first_row + stored)[:, None] * dim + channel[None, :],
            mask=valid[:, None] & (channel < dim)[None, :],
            other=0,
        )
        keys = tl.trans(numbers.to(product_type))
    for start in range(0, count, rows):
        row = start + tl.arange(0, rows)
        index = first + row // queries
        head = tl.load(query_head + request * score_count + index, mask=row < count, other=0)
        numbers_of_row = ((request * heads + head) * queries + row % queries) * dim
        if form == INT4_GROUPS:
            mask = (row < count)[:, None] & used[None, :]
            low_query = tl.load(
                query + numbers_of_row[:, None] + low[None, :], mask=mask, other=0
            ).to(tl.float32)
            high_query = tl.load(
                query + numbers_of_row[:, None] + high[None, :], mask=mask, other=0
            ).to(tl.float32)
            low_scaled = (low_query * low_unit[None, :]).to(element_type).to(product_type)
            high_scaled = (high_query * high_unit[None, :]).to(element_type).to(product_type)
            zeros = low_query * low_zero[None, :] + high_query * high_zero[None, :]
            products = tl.dot(low_scaled, low_codes, input_precision="ieee")
            products += tl.dot(high_scaled, high_codes, input_precision="ieee")
            products += tl.sum(zeros, axis=1)[:, None]
        else:
            row_query = tl.load(
                query + numbers_of_row[:, None] + channel[None, :],
                mask=(row < count)[:, None] & (channel < dim)[None, :],
                other=0,
            )
            products = tl.dot(row_query.to(product_type), keys, input_precision="ieee")
            if form == INT8:
                unit = tl.load(scales + first_row + stored, mask=valid, other=0)
                products = products * unit[None, :]
        place = first_token + token
        written = (row < count)[:, None] & valid[None, :]
        if masked:
            seen = allowed + (request * queries + row % queries)[:, None] * all_tokens
            visible = tl.load(seen + place[None, :], mask=written, other=0) != 0
        else:
            visible = place[None, :] <= all_tokens - queries + (row % queries)[:, None]
        products = tl.where(visible, products * scale, -float("inf"))
        target = ((request * score_count + index) * queries + row % queries) * all_tokens
        tl.store(scores + target[:, None] + place[None, :], products, mask=written)


@triton.jit(do_not_specialize=_CHANGING)
def value_kernel(
    scores,
    score_of_head,
    codes,
    scales,
    sums,
    largest,
    weights,
    tokens,
    first_value,
    capacity,
    first_token,
    all_tokens,
    first_split,
    all_splits,
    heads: tl.constexpr,
    value_heads: tl.constexpr,
    score_count: tl.constexpr,
    queries: tl.constexpr,
    dim: tl.constexpr,
    padded_dim: tl.constexpr,
    rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    split_tokens: tl.constexpr,
    form: tl.constexpr,
    element_type: tl.constexpr,
    product_type: tl.constexpr,
):
    """Write the weighted sums of a split of one head of values, of all heads that share it.

    ``sums`` is [batch, heads, queries, splits, dim]; ``largest`` scores, and ``weights``, the sums
    of probabilities relative to the largest, are [batch, heads, queries, splits].
    """
    group_heads: tl.constexpr = heads // value_heads
    request = (tl.program_id(1) // value_heads).to(tl.int64)
    value_head = tl.program_id(1) % value_heads
    row = tl.program_id(2) * rows + tl.arange(0, rows)
    used = row < group_heads * queries
    head = value_head * group_heads + row // queries
    index = tl.load(score_of_head + request * heads + head, mask=used, other=0)
    scores_of_row = ((request * score_count + index) * queries + row % queries) * all_tokens
    first_row = (request * value_heads + value_head) * capacity
    channel = tl.arange(0, padded_dim)
    half = tl.arange(0, padded_dim // 2)
    row_largest = tl.full([rows], -float("inf"), tl.float32)
    row_weight = tl.zeros([rows], tl.float32)
    if form == INT4:
        low_sum = tl.zeros([rows, padded_dim // 2], tl.float32)
        high_sum = tl.zeros([rows, padded_dim // 2], tl.float32)
    else:
        row_sum = tl.zeros([rows, padded_dim], tl.float32)
    for start in range(0, split_tokens, tile_tokens):
        token = tl.program_id(0) * split_tokens + start + tl.arange(0, tile_tokens)
        valid = token < tokens
        stored = first_row + first_value + token
        products = tl.load(
            scores + scores_of_row[:, None] + (first_token + token)[None, :],
            mask=used[:, None] & valid[None, :],
            other=-float("inf"),
        )
        tile_largest = tl.maximum(row_largest, tl.max(products, axis=1))
        # of rows that see nothing yet, every difference would be no number
        shift = tl.where(tile_largest == -float("inf"), 0.0, tile_largest)
        probabilities = tl.exp(products - shift[:, None])
        decay = tl.exp(row_largest - shift)
        row_weight = row_weight * decay + tl.sum(probabilities, axis=1)
        row_largest = tile_largest
        if form == INT4:
            packed = tl.load(
                codes + stored[:, None] * (dim // 2) + half[None, :],
                mask=valid[:, None] & (half < dim // 2)[None, :],
                other=0,
            )
            unit = tl.load(scales + 2 * stored, mask=valid, other=0).to(tl.float32)
            zero = tl.load(scales + 2 * stored + 1, mask=valid, other=0).to(tl.float32)
            zeros = tl.sum(probabilities * zero[None, :], axis=1)
            scaled = (probabilities * unit[None, :]).to(element_type).to(product_type)
            low_codes, high_codes = (packed & 15).to(product_type), (packed >> 4).to(product_type)
            low_sum = low_sum * decay[:, None] + zeros[:, None]
            high_sum = high_sum * decay[:, None] + zeros[:, None]
            low_sum += tl.dot(scaled, low_codes, input_precision="ieee")
            high_sum += tl.dot(scaled, high_codes, input_precision="ieee")
        else:
            numbers = tl.load(
                codes + stored[:, None] * dim + channel[None, :],
                mask=valid[:, None] & (channel < dim)[None, :],
                other=0,
            )
            if form == INT8:
                unit = tl.load(scales + stored, mask=valid, other=0)
                probabilities = probabilities * unit[None, :]
            scaled = probabilities.to(element_type).to(product_type)
            row_sum = row_sum * decay[:, None]
            row_sum += tl.dot(scaled, numbers.to(product_type), input_precision="ieee")
    part = ((request * heads + head) * queries + row % queries) * all_splits
    part += first_split + tl.program_id(0)
    tl.store(largest + part, row_largest, mask=used)
    tl.store(weights + part, row_weight, mask=used)
    target = sums + part[:, None] * dim
    if form == INT4:
        low = half // (_CHUNK // 2) * _CHUNK + half % (_CHUNK // 2)
        mask = used[:, None] & (half < dim // 2)[None, :]
        tl.store(target + low[None, :], low_sum, mask=mask)
        tl.store(target + low[None, :] + _CHUNK // 2, high_sum, mask=mask)
    else:
        tl.store(target + channel[None, :], row_sum, mask=used[:, None] & (channel < dim)[None, :])


@triton.jit(do_not_specialize=["all_splits"])
def join_kernel(
    sums,
    largest,
    weights,
    out,
    all_splits,
    heads: tl.constexpr,
    queries: tl.constexpr,
    dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """Write [batch, queries, heads, dim]: the splits' sums over their weights."""
    row = tl.program_id(0).to(tl.int64)  # [batch, heads, queries]
    channel = tl.arange(0, padded_dim)
    row_largest = tl.full([], -float("inf"), tl.float32)
    row_weight = tl.zeros([], tl.float32)
    row_sum = tl.zeros([padded_dim], tl.float32)
    for split in range(all_splits):
        part = row * all_splits + split
        split_largest = tl.load(largest + part)
        joined = tl.maximum(row_largest, split_largest)
        shift = tl.where(joined == -float("inf"), 0.0, joined)
        decay, growth = tl.exp(row_largest - shift), tl.exp(split_largest - shift)
        numbers = tl.load(sums + part * dim + channel, mask=channel < dim, other=0)
        row_sum = row_sum * decay + numbers * growth
        row_weight = row_weight * decay + tl.load(weights + part) * growth
        row_largest = joined
    # a query that may see no token has no weight, and gets zeros
    result = tl.where(row_weight == 0, 0.0, row_sum / tl.where(row_weight == 0, 1.0, row_weight))
    request, head, position = row // (heads * queries), row // queries % heads, row % queries
    target = out + ((request * queries + position) * heads + head) * dim
    tl.store(target + channel, result.to(out.dtype.element_ty), mask=channel < dim)
