"""Common parts of the sample's checks: their list, numbers every rank knows, and comparison."""

from collections.abc import Callable
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

CHECKS: list[Callable[[], None]] = []
SLOW: list[Callable[[], None]] = []
SIZES = (0, 1, 7, 1000, 70_001)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
ORDINARY = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def slow(function: Callable[[], None]) -> Callable[[], None]:
    """A check that imports much of torch; left out with --quick."""
    SLOW.append(function)
    return check(function)


def me() -> int:
    return dist.get_rank()


def everyone() -> range:
    return range(dist.get_world_size())


def make(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers that every rank can make for every rank."""
    generator = torch.Generator().manual_seed(1000 * salt + rank + 1)
    values = torch.randint(0, 4, (size,), generator=generator)
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double()).to(dtype)
    return values.to(dtype)


def made(size: int, dtype: torch.dtype, salt: int = 0) -> list[torch.Tensor]:
    return [make(rank, size, dtype, salt) for rank in everyone()]


def same(found: torch.Tensor, wanted: torch.Tensor, what: str = "") -> None:
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype} is not {wanted.dtype}"
    if found.dtype in FLOAT8:  # which torch does not compare
        found, wanted = found.view(torch.uint8), wanted.view(torch.uint8)
    assert torch.equal(found, wanted), f"{what}: {found} is not {wanted}"


@contextmanager
def raises(kind: type[BaseException], *words: str):
    try:
        yield
    except kind as error:
        assert all(word in str(error) for word in words), f"{error} does not say {words}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def reference(op: ReduceOp, parts: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(parts)
    dtype = stacked.dtype
    if dtype in UNSIGNED:  # torch does not add them
        return reference(op, [part.long() for part in parts]).to(dtype)
    if dtype is torch.bool:
        any_, all_ = stacked.any(0), stacked.all(0)
        odd = stacked.long().sum(0) % 2 == 1
        return {
            ReduceOp.SUM: any_, ReduceOp.PRODUCT: all_, ReduceOp.MIN: all_, ReduceOp.MAX: any_,
            ReduceOp.BAND: all_, ReduceOp.BOR: any_, ReduceOp.BXOR: odd,
        }[op]  # fmt: skip
    if op == ReduceOp.SUM:
        return stacked.sum(0, dtype=dtype)
    if op == ReduceOp.PRODUCT:
        return stacked.prod(0, dtype=dtype)
    if op == ReduceOp.MIN:
        return stacked.amin(0)
    if op == ReduceOp.MAX:
        return stacked.amax(0)
    wanted = parts[0].clone()
    for part in parts[1:]:
        if op == ReduceOp.BAND:
            wanted &= part
        elif op == ReduceOp.BOR:
            wanted |= part
        else:
            wanted ^= part
    return wanted
