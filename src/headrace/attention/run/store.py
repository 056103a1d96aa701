"""The cache of one layer: blocks of keys and values of a batch, which are never copied whole."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.attention.errors import AttentionError, CapacityError
from headrace.attention.plan.formats import BLOCK_TOKENS, GROUP_TOKENS, TAIL_TOKENS, StorageFormat
from headrace.attention.run import rows
from headrace.attention.run.rows import RowFormat, StoredRows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Keys and values of consecutive tokens; keys of 4 bits hold whole groups."""

    keys: StoredRows
    values: StoredRows

    @property
    def capacity(self) -> int:
        return self.values.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePart:
    """Keys and values of consecutive tokens, each from a row on."""

    tokens: int
    keys: StoredRows
    values: StoredRows
    first_key: int = 0
    first_value: int = 0


class KeyValueStore:
    """Keys and values of the tokens of a batch, as they are stored.

    Parameters
    ----------
    batch, key_heads, value_heads, dim : of the tensors to append.
    capacity : tokens for which there is room; None: it grows by `BLOCK_TOKENS`, or by what is
        appended at a time, rounded up.
    """

    def __init__(
        self,
        *,
        batch: int,
        key_heads: int,
        value_heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        keys: StorageFormat = StorageFormat.MODEL,
        values: StorageFormat = StorageFormat.MODEL,
        capacity: int | None = None,
    ) -> None:
        self.batch, self.key_heads, self.value_heads, self.dim = batch, key_heads, value_heads, dim
        self.dtype, self._device = dtype, device
        self._keys = rows.key_format(keys, dtype)
        self._values = rows.value_format(values, dtype)
        self._capacity = capacity
        self._blocks: list[_Block] = []
        self._tail: Tensor | None = None
        self._tail_first = 0
        self.tokens = 0
        if keys is StorageFormat.INT4:
            self._tail = torch.empty(batch, key_heads, TAIL_TOKENS, dim, dtype=dtype, device=device)
        if capacity is not None:
            self._allocate(-(-capacity // GROUP_TOKENS) * GROUP_TOKENS)

    @property
    def device(self) -> torch.device:
        """Device of the tensors: of a saved store, the one that it was loaded on."""
        return self._blocks[0].values.codes.device if self._blocks else self._device

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [tensor for block in self._blocks for tensor in self._tensors(block)]
        if self._tail is not None:
            tensors.append(self._tail)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    @staticmethod
    def _tensors(block: _Block) -> Iterator[Tensor]:
        for part in (block.keys, block.values):
            yield part.codes
            if part.scales is not None:
                yield part.scales

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens: [batch, key heads, tokens, dim] and [batch, value heads, ..].

        Raises
        ------
        CapacityError : a store of fixed capacity is full; nothing is stored.
        """
        count = keys.shape[2]
        check_room(self._capacity, self.tokens, count)
        room = sum(block.capacity for block in self._blocks) - self.tokens
        if count > room:
            self._allocate(-(-(count - room) // BLOCK_TOKENS) * BLOCK_TOKENS)
        first = 0
        for block, tokens in self._filled():
            size = min(block.capacity - tokens, count - first)
            if size > 0:
                part = slice(first, first + size)
                self._values.store(block.values, tokens, values[:, :, part])
                if self._tail is None:
                    self._keys.store(block.keys, tokens, keys[:, :, part])
                first += size
        tail, tail_first = self._tail, self._tail_first
        if tail is not None:
            tail, tail_first = self._with_keys(tail, keys)
        # in one statement: an interrupt may come before it or after it
        self._tail, self._tail_first, self.tokens = tail, tail_first, self.tokens + count

    def _filled(self) -> Iterator[tuple[_Block, int]]:
        """Yield the blocks, each with the number of its tokens."""
        tokens = self.tokens
        for block in self._blocks:
            yield block, min(block.capacity, tokens)
            tokens -= min(block.capacity, tokens)

    def _allocate(self, capacity: int) -> None:
        allocate = partial(
            RowFormat.allocate,
            batch=self.batch,
            capacity=capacity,
            dim=self.dim,
            device=self.device,
        )
        self._blocks.append(
            _Block(
                keys=allocate(self._keys, heads=self.key_heads),
                values=allocate(self._values, heads=self.value_heads),
            )
        )

    def _with_keys(self, tail: Tensor, keys: Tensor) -> tuple[Tensor, int]:
        """Store the groups that are complete with the next keys; return the tail, and its first."""
        first, tokens = self.tokens, self.tokens + keys.shape[2]
        tail_tokens = first - self._tail_first
        fits = tail_tokens + keys.shape[2] <= TAIL_TOKENS
        if fits:
            tail[:, :, tail_tokens : tail_tokens + keys.shape[2]] = keys
            recent = tail
        else:
            recent = torch.cat([tail[:, :, :tail_tokens], keys], dim=2) if tail_tokens else keys
        opened = first // GROUP_TOKENS * GROUP_TOKENS
        closed = tokens // GROUP_TOKENS * GROUP_TOKENS
        if closed > opened:
            part = slice(opened - self._tail_first, closed - self._tail_first)
            self._store_groups(opened, recent[:, :, part])
        if fits:
            return tail, self._tail_first
        newest = max(0, closed - GROUP_TOKENS)
        newest_keys = tail.new_empty(tail.shape)
        newest_keys[:, :, : tokens - newest] = recent[:, :, newest - self._tail_first :]
        return newest_keys, newest

    def _store_groups(self, token: int, keys: Tensor) -> None:
        """Store whole groups of keys from a token on."""
        for block in self._blocks:
            size = min(max(0, block.capacity - token), keys.shape[2])
            if size:
                self._keys.store(block.keys, token, keys[:, :, :size])
                keys = keys[:, :, size:]
            token = max(0, token - block.capacity)

    @property
    def _coded_tokens(self) -> int:
        """Tokens whose keys are read from blocks; the others' from the tail."""
        return self.tokens if self._tail is None else self.tokens // GROUP_TOKENS * GROUP_TOKENS

    def parts(self) -> Iterator[StorePart]:
        """Yield all tokens in parts, of which each has keys of one format; valid until a change."""
        first = 0
        for block, tokens in self._filled():
            coded = min(tokens, max(0, self._coded_tokens - first))
            if coded:
                yield StorePart(tokens=coded, keys=block.keys, values=block.values)
            if coded < tokens:
                assert self._tail is not None
                yield StorePart(
                    tokens=tokens - coded,
                    keys=StoredRows(
                        format=rows.MODEL_FORMATS.get(self.dtype),
                        codes=self._tail,
                        scales=None,
                        capacity=TAIL_TOKENS,
                    ),
                    values=block.values,
                    first_key=first + coded - self._tail_first,
                    first_value=coded,
                )
            first += tokens

    def segments(self) -> NDArray[np.int64]:
        """Return the parts as the native kernels read them: addresses, valid until a change."""
        table = [
            [part.tokens, *part.keys.fields(part.first_key), *part.values.fields(part.first_value)]
            for part in self.parts()
        ]
        return np.array(table, np.int64).reshape(len(table), rows.SEGMENT_FIELDS)

    def load(self) -> tuple[Tensor, Tensor]:
        """Return all keys and values in the model's type: copies but of a store of one block."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        first = 0
        for block, tokens in self._filled():
            coded = min(tokens, max(0, self._coded_tokens - first))
            if coded:
                keys.append(self._keys.load(block.keys, coded, self.dtype))
            if coded < tokens and self._tail is not None:
                at = first + coded - self._tail_first
                keys.append(self._tail[:, :, at : at + tokens - coded])
            if tokens:
                values.append(self._values.load(block.values, tokens, self.dtype))
            first += tokens
        return _joined(keys), _joined(values)

    def check_crop(self, tokens: int) -> None:
        """Refuse to remove more tokens than the store has.

        Raises
        ------
        AttentionError
        """
        if tokens > self.tokens:
            raise AttentionError(f"cannot remove {tokens} tokens of {self.tokens}")

    def crop(self, tokens: int) -> None:
        """Remove the newest tokens.

        Of keys of 4 bits, those of a group that is not complete any more are read from their codes
        where the tail does not have them.

        Raises
        ------
        AttentionError : see `check_crop`; nothing is removed.
        """
        self.check_crop(tokens)
        left = self.tokens - tokens
        opened = left // GROUP_TOKENS * GROUP_TOKENS
        tail = self._tail
        if tail is not None and left < self._tail_first:
            tail = tail.new_empty(tail.shape)
            tail[:, :, : left - opened] = self._coded_keys(opened, left - opened)
        # in one statement: an interrupt may come before it or after it
        self.tokens, self._tail, self._tail_first = left, tail, min(opened, self._tail_first)

    def _coded_keys(self, token: int, count: int) -> Tensor:
        """Return the keys of some tokens of a group of 4 bits, from the group's first on."""
        for block in self._blocks:
            if token < block.capacity:
                group = self._keys.load(block.keys, GROUP_TOKENS, self.dtype, first=token)
                return group[:, :, :count]
            token -= block.capacity
        raise AssertionError(token)

    def select(self, requests: Tensor) -> "KeyValueStore":
        """Return a store of some requests, each any number of times, in this order."""
        store = copy.copy(self)
        store._blocks = [
            _Block(keys=block.keys.select(requests), values=block.values.select(requests))
            for block in self._blocks
        ]
        if self._tail is not None:
            store._tail = self._tail.index_select(0, requests)
        store.batch = len(requests)
        return store


def check_room(capacity: int | None, tokens: int, more: int) -> None:
    """Refuse more tokens than a cache of a fixed capacity has room for.

    Raises
    ------
    CapacityError
    """
    if capacity is not None and tokens + more > capacity:
        raise CapacityError(
            f"the cache has room for {capacity} tokens, holds {tokens}, and {more} more come: make "
            "it with a larger max_tokens"
        )


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
