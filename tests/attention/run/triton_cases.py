"""Checks Triton's kernels: in its interpreter against NumPy, or compiled without a device.

    TRITON_INTERPRET=1 python -m tests.attention.run.triton_cases 0 7 12
    python -m tests.attention.run.triton_cases

A process of its own: Triton decides when it is imported whether its kernels are interpreted. It
prints lines of JSON: of the cases of these numbers the largest differences, or the shared memory
of every compiled kernel. The cases are read without Triton.
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.attention import StorageFormat
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.membership import HeadMembership
from headrace.attention.run.store import KeyValueStore
from tests.attention import reference

SCALE = 0.2
COMPILED = ((80, "fp32", torch.float32), (90, "bf16", torch.bfloat16), (80, "fp16", torch.float16))
"""Architectures and types of a model."""
SHAPES = {
    "heads of their own": LayerHeads(query_heads=4, key_value_heads=4, dim=32),
    "groups of 2": LayerHeads(query_heads=6, key_value_heads=3, dim=64),
    "one group of 5": LayerHeads(query_heads=5, key_value_heads=1, dim=96),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    shape: str
    keys: StorageFormat
    values: StorageFormat
    dtype: torch.dtype = torch.float32
    queries: int = 1
    batch: int = 2
    padded: bool = False
    tokens: int = 330
    capacity: int | None = None

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.shape}, {self.keys.value} keys, {self.values.value} values, {kind}, "
            f"{self.batch}x{self.queries} of {self.tokens}, {'padded' if self.padded else 'causal'}"
        )

    @property
    def bound(self) -> float:
        """Largest difference from outputs of about 1: the order of sums, or the type's rounding."""
        return {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[self.dtype]


MODEL, INT8, INT4 = StorageFormat.MODEL, StorageFormat.INT8, StorageFormat.INT4
CASES = [
    *(
        Case(shape=shape, keys=keys, values=values)
        for shape, keys, values in itertools.product(SHAPES, StorageFormat, StorageFormat)
    ),
    *(
        Case(
            shape="groups of 2", keys=bits, values=bits, queries=queries, padded=padded, batch=batch
        )
        for bits in StorageFormat
        for queries, padded, batch in ((1, True, 2), (3, False, 1), (16, True, 3), (16, False, 2))
    ),
    *(
        Case(shape=shape, keys=keys, values=values, dtype=dtype, queries=2)
        for shape in SHAPES
        for keys, values in ((MODEL, MODEL), (INT8, INT8), (INT4, INT8), (INT4, INT4))
        for dtype in (torch.bfloat16, torch.float16)
    ),
    *(
        # several splits of one block
        Case(shape="heads of their own", keys=bits, values=bits, tokens=1100, capacity=1200)
        for bits in StorageFormat
    ),
]


def representatives_of(heads: LayerHeads, batch: int) -> tuple[np.ndarray, int]:
    """Return mixed memberships, and how many represent: within the first and last group."""
    group = heads.query_heads // heads.key_value_heads
    distinct = sorted({*range(group), *range(heads.query_heads - group, heads.query_heads)})
    generator = np.random.default_rng(3)
    rows = generator.choice(distinct, (batch, heads.query_heads)).astype(np.int32)
    rows[:, distinct] = distinct
    if heads.key_value_heads == heads.query_heads:
        # another request has other representatives: rectangular caches of different heads
        rows[-1] = np.where(np.arange(heads.query_heads) < 2, 1, 2)
    return rows, len(distinct)


def mask_of(batch: int, queries: int, tokens: int) -> torch.Tensor:
    """Return a mask with padding on both sides, and a request whose first query sees nothing."""
    allowed = torch.ones(batch, queries, tokens, dtype=torch.bool).tril(tokens - queries)
    allowed[0, :, :70] = False
    allowed[-1, :, -3:] = False
    allowed[-1, 0] = False
    return allowed


def check(case: Case) -> float:
    """Return the largest difference from the reference over the same stored numbers."""
    torch.manual_seed(1)
    heads, batch, queries = SHAPES[case.shape], case.batch, case.queries
    rows, clusters = representatives_of(heads, batch)
    key_heads = min(2, heads.key_value_heads)
    membership = HeadMembership.of(rows, heads, clusters=clusters, key_heads=key_heads)
    tokens = case.tokens
    store = KeyValueStore(
        batch=batch,
        key_heads=key_heads,
        value_heads=heads.key_value_heads,
        dim=heads.dim,
        dtype=case.dtype,
        device=torch.device("cpu"),
        keys=case.keys,
        values=case.values,
        capacity=case.capacity,
    )
    for part in (100, 37, tokens - 137):
        store.append(
            torch.randn(batch, key_heads, part, heads.dim, dtype=case.dtype),
            torch.randn(batch, heads.key_value_heads, part, heads.dim, dtype=case.dtype),
        )
    query = torch.randn(batch, heads.query_heads, queries, heads.dim, dtype=case.dtype)
    allowed = mask_of(batch, queries, tokens) if case.padded else None
    stored_keys, stored_values = (part.float().numpy() for part in store.load())
    all_keys = np.zeros((batch, heads.key_value_heads, tokens, heads.dim))
    for request in range(batch):
        all_keys[request, membership.stored[request]] = stored_keys[request]
    expected = reference.attention(
        query.float().numpy(),
        all_keys,
        stored_values,
        rows,
        scale=SCALE,
        allowed=None if allowed is None else allowed.numpy(),
    )
    from headrace.attention.run.triton_decode import attend_parts

    output = attend_parts(query, store, membership, SCALE, allowed)
    return float(np.abs(output.float().numpy() - expected).max())


def nan_heads() -> list[bool]:
    """Return which of two heads have no numbers where one of the first's keys has none."""
    heads = LayerHeads(query_heads=2, key_value_heads=2, dim=32)
    keys = torch.randn(1, 2, 50, 32)
    keys[0, 0, 10, 3] = torch.nan
    store = KeyValueStore(
        batch=1, key_heads=2, value_heads=2, dim=32, dtype=torch.float32, device=torch.device("cpu")
    )
    store.append(keys, torch.randn(1, 2, 50, 32))
    membership = HeadMembership.full(1, heads)
    from headrace.attention.run.triton_decode import attend_parts

    output = attend_parts(torch.randn(1, 2, 1, 32), store, membership, SCALE, None)
    return output[0, 0].isnan().all(1).tolist()


def compiled() -> Iterator[tuple[str, int]]:
    """Yield every kernel in every format, and its bytes of shared memory on the device."""
    from headrace.attention.run import triton_decode, triton_kernels

    for architecture, element, dtype in COMPILED:
        shape = {"heads": 32, "score_count": 32, "queries": 1, "dim": 128, "padded_dim": 128}
        product = {"product_type": triton_decode._product_type(dtype)}
        rows = triton_decode._rows(64, torch.empty(1, 1, 1, 128, dtype=dtype))
        for form, codes, scales in ((0, element, element), (1, "i8", "fp32"), (3, "u8", "bf16")):
            constants = {**shape, **product, "key_heads": 8, "rows": rows, "tile_tokens": 64}
            pointers = {
                "query": element,
                "query_head": "i32",
                "first_score": "i32",
                "codes": codes,
                "scales": scales,
                "allowed": "u8",
                "scores": "fp32",
            }
            yield (
                f"scores of format {form}, {element}, {architecture}",
                shared_bytes(
                    triton_kernels.score_kernel,
                    pointers,
                    {**constants, "form": form, "masked": True},
                    architecture,
                ),
            )
        for form, codes, scales in ((0, element, element), (1, "i8", "fp32"), (2, "u8", "bf16")):
            constants = {**shape, **product, "value_heads": 8, "rows": rows, "tile_tokens": 64}
            pointers = {
                "scores": "fp32",
                "score_of_head": "i32",
                "codes": codes,
                "scales": scales,
                "sums": "fp32",
                "largest": "fp32",
                "weights": "fp32",
            }
            element_type = triton_decode._ELEMENTS[dtype]
            yield (
                f"values of format {form}, {element}, {architecture}",
                shared_bytes(
                    triton_kernels.value_kernel,
                    pointers,
                    {**constants, "form": form, "split_tokens": 512, "element_type": element_type},
                    architecture,
                ),
            )
        pointers = {"sums": "fp32", "largest": "fp32", "weights": "fp32", "out": element}
        del shape["score_count"]
        yield (
            f"joined, {element}, {architecture}",
            shared_bytes(triton_kernels.join_kernel, pointers, shape, architecture),
        )


def shared_bytes(
    kernel: Any, pointers: dict[str, str], constants: dict[str, object], architecture: int
) -> int:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    numbers = {
        name: "fp32" if name == "scale" else "i32"
        for name in kernel.arg_names
        if name not in pointers and name not in constants
    }
    signature = {
        **{name: f"*{element}" for name, element in pointers.items()},
        **numbers,
        **dict.fromkeys(constants, "constexpr"),
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32)).metadata.shared


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET"):
        for _number in map(int, sys.argv[1:]):
            print(json.dumps([CASES[_number].name, check(CASES[_number])]), flush=True)
        print(json.dumps(["nan", nan_heads()]), flush=True)
    else:
        for _kernel in compiled():
            print(json.dumps(_kernel), flush=True)
