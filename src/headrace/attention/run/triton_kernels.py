"""Kernels of attention of few queries over a store, in Triton's language.

Three kernels, all of them over tiles of tokens in parallel (FlashDecoding's split of the sequence):

1. scores of representatives alone: each stored key is read once, for all queries that use it;
2. sums of values weighted by these scores: each value is read once, for all heads and queries that
   share it, whose clusters' scores are read instead of computed;
3. the splits' sums joined by their largest scores.

Codes of 8 and 4 bits are converted in registers: units of keys of 4 bits are multiplied into the
queries, those of values into the probabilities. Factors of products of matrices are of the model's
type, in which codes are exact, and sums are float32.

A grid's first dimension has the tiles, or splits, of all heads of all requests: in the others there
is room for 65,535 programs.

Of the arguments, tensors are pointers to contiguous memory. Constants of all kernels: ``heads`` of
queries, ``queries`` of each, ``dim`` numbers of a head and ``padded_dim``, the next power of two.
"""

# Triton types its language, and takes branches on constants, when it compiles a kernel
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

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
    tiles = tl.cdiv(tokens, tile_tokens)
    tile = tl.program_id(0) % tiles
    token = tile * tile_tokens + tl.arange(0, tile_tokens)
    head_of_request = (tl.program_id(0) // tiles).to(tl.int64)
    request = head_of_request // key_heads
    valid = token < tokens
    stored = head_of_request * capacity + first_key + token
    # a tile begins with a group, and so does a head
    group = (head_of_request * capacity + first_key + tile * tile_tokens) // _GROUP
    from_first = first_score + head_of_request + request
    first, end = tl.load(from_first), tl.load(from_first + 1)
    for start in range(0, (end - first) * queries, rows):
        row = start + tl.arange(0, rows)
        used = row < (end - first) * queries
        index = first + row // queries
        head = tl.load(query_head + request * score_count + index, mask=used, other=0)
        from_query = query + ((request * heads + head) * queries + row % queries) * dim
        if form == INT4_GROUPS:
            products = _grouped_products(
                from_query, codes, scales, group, stored, used, valid, dim, padded_dim, product_type
            )
        else:
            products = _products(
                from_query, codes, stored, used, valid, dim, padded_dim, product_type
            )
            if form == INT8:
                products *= tl.load(scales + stored, mask=valid, other=0)[None, :]
        place, position = (first_token + token)[None, :], (row % queries)[:, None]
        visible = place <= all_tokens - queries + position
        if masked:
            seen = allowed + (request * queries + position) * all_tokens + place
            visible = tl.load(seen, mask=used[:, None] & valid[None, :], other=0) != 0
        products = tl.where(visible, products * scale, -float("inf"))
        target = ((request * score_count + index)[:, None] * queries + position) * all_tokens
        tl.store(scores + target + place, products, mask=used[:, None] & valid[None, :])


@triton.jit
def _products(
    from_query,
    codes,
    stored,
    used,
    valid,
    dim: tl.constexpr,
    padded_dim: tl.constexpr,
    product_type: tl.constexpr,
):
    """Return the products of rows of queries with a tile's keys: [rows, tokens]."""
    channel = tl.arange(0, padded_dim)
    inside = (channel < dim)[None, :]
    keys = tl.load(
        codes + stored[:, None] * dim + channel[None, :], mask=valid[:, None] & inside, other=0
    )
    row_query = tl.load(
        from_query[:, None] + channel[None, :], mask=used[:, None] & inside, other=0
    )
    return tl.dot(
        row_query.to(product_type), tl.trans(keys.to(product_type)), input_precision="ieee"
    )


@triton.jit
def _grouped_products(
    from_query,
    codes,
    scales,
    group,
    stored,
    used,
    valid,
    dim: tl.constexpr,
    padded_dim: tl.constexpr,
    product_type: tl.constexpr,
):
    """Return `_products` with keys of 4 bits, whose units are multiplied into the queries."""
    units = scales + group * 2 * dim
    element_type: tl.constexpr = from_query.dtype.element_ty
    half = tl.arange(0, padded_dim // 2)
    low = half // (_CHUNK // 2) * _CHUNK + half % (_CHUNK // 2)
    inside = half < dim // 2
    packed = tl.load(
        codes + stored[:, None] * (dim // 2) + half[None, :],
        mask=valid[:, None] & inside[None, :],
        other=0,
    )
    products = tl.zeros([from_query.shape[0], stored.shape[0]], tl.float32)
    for part in tl.static_range(2):
        channel = low + part * (_CHUNK // 2)
        unit = tl.load(units + channel, mask=inside, other=0).to(tl.float32)
        zero = tl.load(units + dim + channel, mask=inside, other=0).to(tl.float32)
        row_query = tl.load(
            from_query[:, None] + channel[None, :], mask=used[:, None] & inside[None, :], other=0
        ).to(tl.float32)
        numbers = packed & 15 if part == 0 else packed >> 4
        scaled = (row_query * unit[None, :]).to(element_type).to(product_type)
        products += tl.dot(scaled, tl.trans(numbers.to(product_type)), input_precision="ieee")
        products += tl.sum(row_query * zero[None, :], axis=1)[:, None]
    return products


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
    splits = tl.cdiv(tokens, split_tokens)
    split = tl.program_id(0) % splits
    head_of_request = tl.program_id(0) // splits
    request = (head_of_request // value_heads).to(tl.int64)
    value_head = head_of_request % value_heads
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    used = row < group_heads * queries
    head = value_head * group_heads + row // queries
    index = tl.load(score_of_head + request * heads + head, mask=used, other=0)
    scores_of_row = ((request * score_count + index) * queries + row % queries) * all_tokens
    from_scores = scores + scores_of_row + first_token
    stored = (request * value_heads + value_head) * capacity + first_value
    part = ((request * heads + head) * queries + row % queries) * all_splits
    part += first_split + split
    first = split * split_tokens
    target = sums + part * dim
    constants: tl.constexpr = (dim, padded_dim, rows, tile_tokens, split_tokens)
    types: tl.constexpr = (form, element_type, product_type)
    row_largest, row_weight = _sums(
        from_scores, codes, scales, target, stored, used, first, tokens, constants, types
    )
    tl.store(largest + part, row_largest, mask=used)
    tl.store(weights + part, row_weight, mask=used)


@triton.jit
def _sums(
    from_scores,
    codes,
    scales,
    target,
    first_stored,
    used,
    first,
    tokens,
    constants: tl.constexpr,
    types: tl.constexpr,
):
    """Store the sums of a split's values; return its largest scores and sums of probabilities.

    Values of 4 bits are summed as two halves, by the half of a byte that has their codes.
    """
    dim: tl.constexpr = constants[0]
    rows: tl.constexpr = constants[2]
    form: tl.constexpr = types[0]
    parts: tl.constexpr = 2 if form == INT4 else 1
    width: tl.constexpr = constants[1] // parts
    channel = tl.arange(0, width)
    inside = (channel < dim // parts)[None, :]
    row_largest = tl.full([rows], -float("inf"), tl.float32)
    row_weight = tl.zeros([rows], tl.float32)
    row_sum = tl.zeros([rows, width], tl.float32)
    high_sum = tl.zeros([rows, width], tl.float32)
    for start in range(0, constants[4], constants[3]):
        token = first + start + tl.arange(0, constants[3])
        valid = token < tokens
        stored = first_stored + token
        from_tile = from_scores[:, None] + token[None, :]
        products = tl.load(from_tile, mask=used[:, None] & valid[None, :], other=-float("inf"))
        probabilities, decay, row_largest = _probabilities(products, row_largest)
        row_weight = row_weight * decay + tl.sum(probabilities, axis=1)
        from_codes = codes + stored[:, None] * (dim // parts) + channel[None, :]
        numbers = tl.load(from_codes, mask=valid[:, None] & inside, other=0)
        row_sum *= decay[:, None]
        if form == INT4:
            zero = tl.load(scales + 2 * stored + 1, mask=valid, other=0).to(tl.float32)
            zeros = tl.sum(probabilities * zero[None, :], axis=1)[:, None]
            unit = tl.load(scales + 2 * stored, mask=valid, other=0).to(tl.float32)
            scaled = (probabilities * unit[None, :]).to(types[1]).to(types[2])
            high = (numbers >> 4).to(types[2])
            high_sum = high_sum * decay[:, None] + zeros
            high_sum += tl.dot(scaled, high, input_precision="ieee")
            row_sum += zeros + tl.dot(scaled, (numbers & 15).to(types[2]), input_precision="ieee")
        else:
            if form == INT8:
                probabilities *= tl.load(scales + stored, mask=valid, other=0)[None, :]
            scaled = probabilities.to(types[1]).to(types[2])
            row_sum += tl.dot(scaled, numbers.to(types[2]), input_precision="ieee")
    if form == INT4:
        channel = channel // (_CHUNK // 2) * _CHUNK + channel % (_CHUNK // 2)
        high_target = target[:, None] + channel[None, :] + _CHUNK // 2
        tl.store(high_target, high_sum, mask=used[:, None] & inside)
    tl.store(target[:, None] + channel[None, :], row_sum, mask=used[:, None] & inside)
    return row_largest, row_weight


@triton.jit
def _probabilities(products, before):
    """Return a tile's probabilities relative to the largest score so far, and that.

    The second result is the factor of sums that are relative to the largest score before.
    """
    largest = tl.maximum(before, tl.max(products, axis=1))
    # of rows that see nothing yet, every difference would be no number
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    return tl.exp(products - shift[:, None]), tl.exp(before - shift), largest


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
