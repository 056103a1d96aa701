"""Stores of keys and values against plain tensors: formats, growth, removal, selection."""

import io
import itertools
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import AttentionFormat
from headrace.attention import AttentionError, CapacityError, StorageFormat
from headrace.attention.plan.formats import BLOCK_TOKENS, GROUP_TOKENS, LayerHeads
from headrace.attention.plan.plan import LayerPlan
from headrace.attention.run import rows
from headrace.attention.run.store import KeyValueStore

FORMATS = list(StorageFormat)
# Largest error over the largest magnitude: half a unit, and the rounding of units to bfloat16.
BOUNDS = {
    StorageFormat.MODEL: 0.0,
    StorageFormat.INT8: 0.5 / 127 * 1.01,
    StorageFormat.INT4: 1 / 15,
}


def store_of(
    keys: StorageFormat = StorageFormat.MODEL,
    values: StorageFormat = StorageFormat.MODEL,
    *,
    batch: int = 2,
    capacity: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> KeyValueStore:
    return KeyValueStore(
        batch=batch,
        key_heads=2,
        value_heads=3,
        dim=32,
        dtype=dtype,
        device=torch.device("cpu"),
        keys=keys,
        values=values,
        capacity=capacity,
    )


def tokens_of(count: int, batch: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, 2, count, 32, generator=generator),
        torch.randn(batch, 3, count, 32, generator=generator),
    )


@pytest.mark.parametrize("values", FORMATS)
@pytest.mark.parametrize("keys", FORMATS)
def test_numbers_come_back_within_the_bound_of_their_format(
    keys: StorageFormat, values: StorageFormat
) -> None:
    store = store_of(keys, values)
    parts = [tokens_of(count, seed=seed) for seed, count in enumerate((1, 63, 70, 300, 2))]
    for part in parts:
        store.append(*part)
    expected = [torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True)]
    for form, loaded, exact in zip((keys, values), store.load(), expected, strict=True):
        error = (loaded - exact).abs().max() / exact.abs().max()
        assert error <= BOUNDS[form], form


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [StorageFormat.INT8, StorageFormat.INT4])
def test_codes_of_kernels_and_of_tensors_are_the_same(
    form: StorageFormat, dtype: torch.dtype
) -> None:
    numbers = torch.randn(2, 3, 2 * GROUP_TOKENS, 64, dtype=dtype)
    numbers[0, 0, 0] = 0
    numbers[0, 0, 1] = 3.5
    numbers[0, 1] *= 1e-30
    numbers[1, 1] *= 1e30
    for row_format in (rows.key_format(form, dtype), rows.value_format(form, dtype)):
        sizes = {"batch": 2, "heads": 3, "capacity": 2 * GROUP_TOKENS, "dim": 64}
        native, plain = (row_format.allocate(**sizes, device=torch.device("cpu")) for _ in range(2))
        row_format.store(native, 0, numbers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "is_native", lambda tensor: False)
            row_format.store(plain, 0, numbers)
        assert native.scales is not None
        assert plain.scales is not None
        np.testing.assert_array_equal(native.scales.float(), plain.scales.float())
        # a number between two codes of 8 bits may get either: kernels round its product once
        difference = native.codes.int() - plain.codes.int()
        assert difference.abs().max() <= (row_format.native is AttentionFormat.INT8)
        assert difference.count_nonzero() <= 0.002 * difference.numel()


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 150)),
            st.tuples(st.just("crop"), st.integers(0, 200)),
            st.tuples(st.just("select"), st.integers(0, 7)),
        ),
        max_size=12,
    ),
    form=st.sampled_from([StorageFormat.MODEL, StorageFormat.INT4]),
)
def test_any_order_of_changes_leaves_what_a_list_of_tokens_has(
    actions: list[tuple[str, int]], form: StorageFormat
) -> None:
    store = store_of(form)
    keys, values = tokens_of(0)
    for step, (action, number) in enumerate(actions):
        if action == "append":
            more = tokens_of(number, batch=len(keys), seed=step)
            store.append(*more)
            keys, values = torch.cat([keys, more[0]], 2), torch.cat([values, more[1]], 2)
        elif action == "crop" and number <= store.tokens:
            store.crop(number)
            left = keys.shape[2] - number
            keys, values = keys[:, :, :left], values[:, :, :left]
        elif action == "select":
            requests = torch.tensor([number % len(keys), number // 2 % len(keys), 0])[
                : 1 + number % 3
            ]
            store = store.select(requests)
            keys, values = keys[requests], values[requests]
        assert store.tokens == keys.shape[2]
        assert store.segments()[:, 0].sum() == store.tokens
        if store.tokens:
            loaded_keys, loaded_values = store.load()
            assert torch.equal(loaded_values, values)
            bound = BOUNDS[form] * float(keys.abs().max())
            assert float((loaded_keys - keys).abs().max()) <= bound
            if action == "crop":  # what stays of an opened group may get codes of its codes
                keys = loaded_keys.clone()


def test_keys_of_four_bits_whose_group_is_opened_are_those_of_their_codes() -> None:
    """So many could not be removed: text that an assistant proposed beyond a group of tokens ended
    in an error, and so did the prefix of a text."""
    for left in (GROUP_TOKENS + 20, 2 * GROUP_TOKENS, 5 * GROUP_TOKENS + 1):
        store = store_of(StorageFormat.INT4, capacity=None if left % 2 else 600)
        store.append(*tokens_of(500))
        before, values = store.load()
        store.crop(500 - left)
        assert torch.equal(store.load()[0], before[:, :, :left])
        keys, more_values = tokens_of(100, seed=1)
        store.append(keys, more_values)
        groups = left // GROUP_TOKENS * GROUP_TOKENS
        after, after_values = store.load()
        assert torch.equal(after[:, :, :groups], before[:, :, :groups])
        expected = torch.cat([before[:, :, :left], keys], dim=2)
        assert float((after - expected).abs().max()) <= float(expected.abs().max()) / 15
        assert torch.equal(after_values, torch.cat([values[:, :, :left], more_values], dim=2))
    with pytest.raises(AttentionError, match="cannot remove 1000 tokens of"):
        store.crop(1000)


def test_a_full_store_refuses_more_and_keeps_what_it_has() -> None:
    store = store_of(capacity=10)
    store.append(*tokens_of(8))
    with pytest.raises(CapacityError, match="has room for 10 tokens, holds 8, and 3 more come"):
        store.append(*tokens_of(3))
    store.append(*tokens_of(2))
    assert store.tokens == 10


def interrupted_before(line: int, call: Callable[[], None]) -> bool:
    """Interrupt a call before a line of the store's code; return whether it comes to so many."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != KeyValueStore.append.__code__.co_filename:
            return None
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("keys", FORMATS)
def test_an_interrupt_leaves_a_store_as_before_its_next_tokens_or_with_all_of_them(
    keys: StorageFormat,
) -> None:
    """Blocks that were full by then counted them, or keys of 4 bits had another first one: the next
    tokens were read from other places.
    """
    for line in itertools.count():
        stores = [store_of(keys), store_of(keys)]
        for store in stores:
            store.append(*tokens_of(200))
        more = tokens_of(500, seed=1)
        interrupted = interrupted_before(line, partial(stores[0].append, *more))
        if stores[0].tokens != 200:
            stores[1].append(*more)
        for store in stores:
            store.append(*tokens_of(100, seed=2))
        assert stores[0].tokens == stores[1].tokens == stores[0].segments()[:, 0].sum()
        for numbers, expected in zip(stores[0].load(), stores[1].load(), strict=True):
            assert torch.equal(numbers, expected)
        if not interrupted:
            assert line > 20
            return


@pytest.mark.parametrize("count", [1, BLOCK_TOKENS, 1000])
@pytest.mark.parametrize("values", FORMATS)
@pytest.mark.parametrize("keys", FORMATS)
def test_allocated_bytes_are_those_that_the_plan_predicts(
    keys: StorageFormat, values: StorageFormat, count: int
) -> None:
    heads = LayerHeads(query_heads=6, key_value_heads=3, dim=32)
    plan = LayerPlan(heads=heads, clusters=4, key_heads=2, keys=keys, values=values)
    store = store_of(keys, values)
    store.append(*tokens_of(count))
    assert store.allocated_bytes == plan.cache_bytes(2, count, element_bytes=4)


def test_a_saved_store_goes_on_with_the_device_that_it_is_loaded_on() -> None:
    """It allocated blocks, and looked for requests, on the one that it was saved on."""
    store = store_of(StorageFormat.INT4, StorageFormat.INT8)
    store.append(*tokens_of(100))
    file = io.BytesIO()
    torch.save(store, file)
    file.seek(0)
    loaded: KeyValueStore = torch.load(file, map_location="meta", weights_only=False)
    loaded.append(*(tensor.to("meta") for tensor in tokens_of(300)))
    selected = loaded.select(torch.tensor([1, 0, 1], device=loaded.device))
    for tensor, heads in zip(selected.load(), (2, 3), strict=True):
        assert tensor.shape == (3, heads, 400, 32)
        assert tensor.device.type == "meta"
