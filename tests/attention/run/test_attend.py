"""Every path of attention against NumPy: kernels, products of matrices, the stock kernel."""

import itertools

import numpy as np
import pytest
import torch

from headrace.attention import StorageFormat
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.attend import attend_shared, attend_stock, attend_store
from headrace.attention.run.membership import HeadMembership, within_key_heads
from headrace.attention.run.store import KeyValueStore
from tests.attention import reference

SCALE = 0.2
CASES = list(
    itertools.product(
        [
            LayerHeads(query_heads=4, key_value_heads=4, dim=32),
            LayerHeads(query_heads=6, key_value_heads=3, dim=64),
        ],
        [1, 5, 40],
        [False, True],
    )
)


def representatives_of(heads: LayerHeads, batch: int) -> np.ndarray:
    """Return those of requests whose first and last heads of keys stay."""
    group = heads.query_heads // heads.key_value_heads
    kept = [*range(group), *range(heads.query_heads - group, heads.query_heads)]
    generator = np.random.default_rng(3)
    rows = generator.choice(kept, (batch, heads.query_heads)).astype(np.int32)
    rows[:, kept] = kept
    return rows


def mask_of(batch: int, queries: int, tokens: int) -> torch.Tensor:
    """Return a mask with padding on both sides, and a request whose first query sees nothing."""
    allowed = torch.ones(batch, queries, tokens, dtype=torch.bool).tril(tokens - queries)
    allowed[0, :, :7] = False
    allowed[1, :, -3:] = False
    allowed[1, 0] = False
    return allowed


@pytest.mark.parametrize(("keys", "values"), list(itertools.product(StorageFormat, StorageFormat)))
def test_paths_agree_with_numpy(keys: StorageFormat, values: StorageFormat) -> None:
    for heads, queries, padded in CASES:
        check_paths(heads, queries, padded, keys, values)


def check_paths(
    heads: LayerHeads, queries: int, padded: bool, keys: StorageFormat, values: StorageFormat
) -> None:
    batch, tokens = 2, 600
    torch.manual_seed(1)
    query = torch.randn(batch, heads.query_heads, queries, heads.dim)
    rows = representatives_of(heads, batch)
    group = heads.query_heads // heads.key_value_heads
    membership = HeadMembership.of(rows, heads, clusters=2 * group, key_heads=2)
    store = KeyValueStore(
        batch=batch,
        key_heads=2,
        value_heads=heads.key_value_heads,
        dim=heads.dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
        keys=keys,
        values=values,
    )
    for part in (100, 37, tokens - 137):
        store.append(
            torch.randn(batch, 2, part, heads.dim),
            torch.randn(batch, heads.key_value_heads, part, heads.dim),
        )
    stored_keys, stored_values = store.load()
    allowed = mask_of(batch, queries, tokens) if padded else None
    all_keys = np.zeros((batch, heads.key_value_heads, tokens, heads.dim))
    all_keys[:, [0, -1]] = stored_keys
    expected = reference.attention(
        query.numpy(),
        all_keys,
        stored_values.numpy(),
        rows,
        scale=SCALE,
        allowed=None if allowed is None else allowed.numpy(),
    )
    before = torch.get_num_threads()
    outputs: list[torch.Tensor] = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            outputs.append(attend_store(query, store, membership, scale=SCALE, allowed=allowed))
    finally:
        torch.set_num_threads(before)
    tolerance = 2e-5 if keys is StorageFormat.MODEL else 2e-4  # queries are codes of 16 bits, too
    for output in outputs:
        np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)
    for path in (attend_shared, attend_stock):
        output = path(query, stored_keys, stored_values, membership, scale=SCALE, allowed=allowed)
        np.testing.assert_allclose(output, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_the_stock_kernel_copies_more_heads_than_fit_at_a_time(padded: bool) -> None:
    heads = LayerHeads(query_heads=22, key_value_heads=11, dim=32)
    membership = HeadMembership.of(representatives_of(heads, 2), heads, clusters=4, key_heads=2)
    torch.manual_seed(2)
    query = torch.randn(2, 22, 30, 32)
    keys, values = torch.randn(2, 2, 40, 32), torch.randn(2, 11, 40, 32)
    allowed = mask_of(2, 30, 40) if padded else None
    shared, stock = (
        path(query, keys, values, membership, scale=SCALE, allowed=allowed)
        for path in (attend_shared, attend_stock)
    )
    torch.testing.assert_close(stock, shared, rtol=0, atol=2e-5)


def test_equal_threads_give_equal_bits_whatever_was_shared() -> None:
    heads = LayerHeads(query_heads=4, key_value_heads=4, dim=32)
    store = KeyValueStore(
        batch=1, key_heads=4, value_heads=4, dim=32, dtype=torch.float32, device=torch.device("cpu")
    )
    store.append(torch.randn(1, 4, 900, 32), torch.randn(1, 4, 900, 32))
    query = torch.randn(1, 4, 1, 32)
    full = HeadMembership.full(1, heads)
    own = np.arange(4, dtype=np.int32)[None]
    first = attend_store(query, store, full, scale=SCALE)
    assert torch.equal(first, attend_store(query, store, full, scale=SCALE))
    assert torch.equal(
        first, attend_store(query, store, HeadMembership.over_all_keys(own, heads), scale=SCALE)
    )


def test_copied_rows_share_without_a_change() -> None:
    """Heads that are copies of others: sharing gives the logits of full attention."""
    heads = LayerHeads(query_heads=6, key_value_heads=6, dim=32)
    copies = [0, 1, 0, 1, 4, 0]
    query, keys = torch.randn(2, 6, 3, 32)[:, copies], torch.randn(2, 6, 80, 32)[:, copies]
    values = torch.randn(2, 6, 80, 32)
    rows = np.array([copies, copies], np.int32)
    full = attend_shared(query, keys, values, HeadMembership.full(2, heads), scale=SCALE)
    membership = HeadMembership.of(rows, heads, clusters=3, key_heads=3)
    kept = keys[:, [0, 1, 4]]
    shared = attend_shared(query, kept, values, membership, scale=SCALE)
    assert torch.equal(full, shared)


def test_nan_propagates_as_in_the_stock_kernel() -> None:
    heads = LayerHeads(query_heads=2, key_value_heads=2, dim=32)
    keys, values = torch.randn(1, 2, 50, 32), torch.randn(1, 2, 50, 32)
    keys[0, 0, 10, 3] = torch.nan
    store = KeyValueStore(
        batch=1, key_heads=2, value_heads=2, dim=32, dtype=torch.float32, device=torch.device("cpu")
    )
    store.append(keys, values)
    output = attend_store(
        torch.randn(1, 2, 1, 32), store, HeadMembership.full(1, heads), scale=SCALE
    )
    assert output[0, 0, 0].isnan().all()
    assert not output[0, 0, 1].isnan().any()


def test_heads_follow_the_nearest_representative_whose_keys_stay() -> None:
    heads = LayerHeads(query_heads=6, key_value_heads=3, dim=32)
    rows = np.array([[0, 0, 2, 0, 5, 5]], np.int32)
    features = np.array([[[0.0], [0.1], [4.0], [0.2], [9.0], [10.0]]], np.float32)
    limited = within_key_heads(rows, features, heads, 2)
    assert limited.tolist() == [[0, 0, 0, 0, 5, 5]]
    assert within_key_heads(rows, features, heads, 3) is not rows
    np.testing.assert_array_equal(within_key_heads(rows, features, heads, 3), rows)
