"""Caches of random numbers in every format, and calls over them that are timed in turns."""

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from headrace.attention import StorageFormat
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.attend import attend_store
from headrace.attention.run.membership import HeadMembership
from headrace.attention.run.store import KeyValueStore

DIM = 128
SCALE = DIM**-0.5
CLUSTERS = 12
MOST_CACHE_BYTES = 600 << 20
"""Of a cell's keys and values in the model's type; several formats of them are held at once."""
ALL_THREADS = torch.get_num_threads()
"""Torch's own number, before `one_thread`."""
_ROUND_BYTES = 1 << 30
_ROUNDS = (15, 151)

Call = Callable[[], object]


def store_of(
    keys: Tensor,
    values: Tensor,
    key_format: StorageFormat = StorageFormat.MODEL,
    value_format: StorageFormat = StorageFormat.MODEL,
) -> KeyValueStore:
    """Return a store of [batch, heads, tokens, dim]."""
    store = KeyValueStore(
        batch=keys.shape[0],
        key_heads=keys.shape[1],
        value_heads=values.shape[1],
        dim=keys.shape[3],
        dtype=keys.dtype,
        device=keys.device,
        keys=key_format,
        values=value_format,
    )
    store.append(keys, values)
    return store


def mixed_membership(batch: int, heads: LayerHeads, clusters: int, seed: int = 0) -> HeadMembership:
    """Return one with other clusters for every request, of random sizes."""
    generator = np.random.default_rng(seed)
    rows = np.empty((batch, heads.query_heads), np.int32)
    for row in rows:
        representatives = generator.choice(heads.query_heads, clusters, replace=False)
        row[:] = generator.choice(representatives, heads.query_heads)
        row[representatives] = representatives
    return HeadMembership.of(rows, heads, clusters=clusters, key_heads=clusters)


def stored_keys(keys: Tensor, membership: HeadMembership) -> Tensor:
    """Return the keys of the heads that a cache has."""
    index = torch.from_numpy(membership.stored).long()[:, :, None, None]
    return keys.gather(1, index.expand(-1, -1, *keys.shape[2:])).contiguous()


def attending(query: Tensor, store: KeyValueStore, membership: HeadMembership) -> Call:
    """Return the call of attention over a store."""
    return lambda: attend_store(query, store, membership, scale=SCALE)


def seconds_of(calls: Mapping[str, Call], read_bytes: int) -> dict[str, float]:
    """Return the median seconds of this thread's processor time, of calls in turns.

    A thread that waits for a processor is not charged, so that other work disturbs ratios less.
    """
    rounds = max(_ROUNDS[0], min(_ROUNDS[1], _ROUND_BYTES // max(1, read_bytes)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.thread_time()
            call()
            seconds[name].append(time.thread_time() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def wall_seconds(calls: Mapping[str, Call], rounds: int = 7) -> dict[str, float]:
    """Return the median elapsed seconds with all of torch's threads, of calls in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def check_close(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Raise ArithmeticError where two outputs differ by more than a share of the largest number."""
    difference = float((found.double() - expected.double()).abs().max())
    largest = float(expected.abs().max())
    if not difference <= tolerance * largest:
        raise ArithmeticError(f"{name} differs by {difference:.2g} of {largest:.2g}")


def grid(quick: bool, token_bytes: int) -> list[tuple[int, int]]:
    """Return batches and tokens; `token_bytes` of one request's keys and values."""
    batches, tokens = (1, 4, 16), (512, 2048, 8192)
    if quick:
        batches, tokens = (1, 4), (512, 2048)
    return [
        (batch, count)
        for count in tokens
        for batch in batches
        if batch * count * token_bytes <= MOST_CACHE_BYTES
    ]


def one_thread(measure: Callable[[], None]) -> None:
    """Call a function with torch on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measure()
    finally:
        torch.set_num_threads(before)
