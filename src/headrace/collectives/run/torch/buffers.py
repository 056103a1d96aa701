"""Tensors as arguments of the executor: segments of memory, element type and operator.

Binding functions return a `Binding`: the segments, the function that copies results out afterwards,
and the staging buffers that must live until then. Calls that only move data are bound as bytes.
Tensors that are not contiguous, or that the collective would clobber, go through staging buffers.
"""

import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import (
    _debug_has_internal_overlap as has_internal_overlap,  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
)
from torch.distributed import ReduceOp

from headrace._native import DataType, Operator
from headrace.errors import InputError
from headrace.executor import Segment
from headrace.executor.executor import ELEMENTS
from headrace.executor.overlap import overlaps

Tensors = Sequence[torch.Tensor]


class BlockLayout(NamedTuple):
    """Blocks of a call's buffers: one per rank.

    Attributes
    ----------
    chunks : slots per block.
    blockwise : no step spans blocks, so blocks may be anywhere in memory.
    keeps_inputs : no step writes to another rank's block (of a reduce_scatter or scatter).
    """

    rank: int
    ranks: int
    chunks: int
    blockwise: bool = True
    keeps_inputs: bool = False


class Binding(NamedTuple):
    """Memory of a call.

    Attributes
    ----------
    segments : rows in slot order.
    after : copies results out of the staging buffers; None if there is nothing to copy.
    keep : buffers to hold until the call ends.
    """

    segments: tuple[Segment, ...]
    after: Callable[[], None] | None
    keep: tuple[torch.Tensor, ...]


IN_PLACE = Binding((), None, ())
"""Binding of a call on the tensor's own memory, whose segment is prepared."""


Arithmetic = tuple[DataType, Operator, bool]
"""Element type and operator of a call, as the executor's, and whether it averages."""

MOVED: Arithmetic = (DataType.uint8, Operator.sum, False)
"""For data that is only moved."""

_DTYPES = {getattr(torch, dtype.name): dtype for dtype in DataType}
# torch's ReduceOp compares equal to its RedOpType, but a dictionary of ReduceOps finds only those
_OPERATORS = {
    **{ReduceOp(getattr(ReduceOp, op.name.upper())): (op, False) for op in Operator},
    ReduceOp(ReduceOp.AVG): (Operator.sum, True),
}
_ELEMENTS = {
    getattr(torch, name): number for number, name in enumerate(ELEMENTS, 1) if hasattr(torch, name)
}
_SCALED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Dtypes that PREMUL_SUM is defined for, as with NCCL."""

# Returned by torch for tensors that it refuses to copy to.
_OVERLAP = 1
# The size of a frame has 32 bits.
_LARGEST_FRAME_BYTES = (1 << 32) - 1
_BITWISE = frozenset({Operator.band, Operator.bor, Operator.bxor})


def check(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is a dense CPU tensor."""
    if not tensor.is_cpu:
        raise InputError(
            f"a tensor is on {tensor.device}, others of the same call are on the CPU: move them "
            "to one device with tensor.to()"
        )
    check_dense(tensor)


def check_dense(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is dense and has memory."""
    if tensor.is_nested:
        raise InputError(
            "a tensor is nested; the headrace backend moves dense tensors only: pass its values, "
            "tensor.values() of layout torch.jagged"
        )
    if tensor.is_quantized:
        raise InputError(
            f"a tensor is of {tensor.dtype}, quantized; the headrace backend moves numbers without "
            "their scale: pass tensor.int_repr(), and the scale where ranks differ in it"
        )
    if tensor.layout is not torch.strided:
        raise InputError(
            f"a tensor has layout {tensor.layout}; the headrace backend moves dense tensors only: "
            "pass tensor.to_dense(), or its indices and values"
        )
    if tensor.numel() and not tensor.is_meta and not tensor.data_ptr():
        storage_bytes = tensor.untyped_storage().nbytes()
        if storage_bytes >= tensor.nbytes:  # as of a DTensor or FakeTensor
            raise InputError(
                f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory of its "
                "own, needs a plain tensor: of a DTensor pass to_local()"
            )
        raise InputError(
            f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was resized to "
            f"{storage_bytes} bytes; resize it back before the call"
        )


def check_result(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is on the CPU and results can be written to it."""
    check(tensor)
    check_writable(tensor)


def check_writable(tensor: torch.Tensor) -> None:
    """Raise InputError unless results can be written to `tensor`, on whatever device."""
    check_dense(tensor)
    if tensor.is_conj():
        raise InputError(
            "an output tensor is a lazy conjugate (of conj() or mH): pass a plain one, "
            "tensor.resolve_conj(), and conjugate the result"
        )
    if not tensor.is_contiguous() and has_internal_overlap(tensor) == _OVERLAP:
        raise InputError(
            f"an output tensor has several elements in the same memory (shape "
            f"{tuple(tensor.shape)}, strides {tensor.stride()}, as expand() makes them): pass "
            "tensor.clone()"
        )


def arithmetic(dtype: torch.dtype, op: ReduceOp) -> Arithmetic:
    """Return the executor's element type and operator for a (real) dtype and a reduce operator.

    Raises
    ------
    InputError : for a combination that has no meaning or no kernel.
    """
    premultiplies = is_premul_sum(op)
    operator = (Operator.sum, False) if premultiplies else _OPERATORS.get(op)
    if operator is None:
        raise InputError(
            f"reduce operator {_name(op)} is not supported; use one of "
            "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM"
        )
    combine, average = operator
    if dtype.is_complex:
        if combine is not Operator.sum:
            raise InputError(f"{_name(op)} has no meaning on complex tensors; use SUM or AVG")
        dtype = dtype.to_real()
    if premultiplies and dtype not in _SCALED:
        raise InputError(
            f"PREMUL_SUM has no meaning on {dtype}; convert to float32, float64, float16 or "
            "bfloat16"
        )
    native = _DTYPES.get(dtype)
    if native is None:
        names = ", ".join(sorted(DataType.__members__))
        raise InputError(f"tensors of {dtype} cannot be reduced; convert to one of {names}")
    if combine in _BITWISE and dtype.is_floating_point:
        raise InputError(
            f"{_name(op)} has no meaning on {dtype}; convert to an integer dtype or bool"
        )
    if average and dtype is torch.bool:
        raise InputError("AVG has no meaning on torch.bool; convert to a number first")
    return native, combine, average


def is_premul_sum(op: ReduceOp) -> bool:
    """Return whether `op` multiplies this rank's values by its factor, then sums."""
    return operator.eq(op, ReduceOp.PREMUL_SUM)


def premultiplied(tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """Return the summand of `tensor`: a new, scaled tensor for PREMUL_SUM, else `tensor`."""
    return tensor.detach() * _factor(tensor, op) if is_premul_sum(op) else tensor


def premultiply(tensor: torch.Tensor, op: ReduceOp) -> None:
    """Scale `tensor` in place for PREMUL_SUM."""
    if is_premul_sum(op):
        tensor.detach().mul_(_factor(tensor, op))


def element(dtype: torch.dtype) -> int:
    """Return the number of a dtype in messages; 0 if it has none."""
    return _ELEMENTS.get(dtype, 0)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor's real view (two numbers per element), any other unchanged.

    For a lazy conjugate it is the view of a copy: read only.
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def in_place(tensor: torch.Tensor, chunks: int, *, moved: bool = False) -> Binding:
    """Bind one buffer that the call works on in place (allreduce, a broadcast but at its root)."""
    check_result(tensor)
    if tensor.is_contiguous() and not tensor.is_neg():
        staged, after = tensor, None
    else:
        staged = plain(tensor)
        after = _copy_all([tensor], [staged])
    return Binding(((staged.data_ptr(), _size(staged, moved), 1, chunks),), after, (staged,))


def outgoing(tensor: torch.Tensor, chunks: int = 1) -> Binding:
    """Bind a message, or a broadcast at its root: read only, as bytes."""
    check(tensor)
    staged = plain(tensor)
    return Binding(((staged.data_ptr(), staged.nbytes, 1, chunks),), None, (staged,))


def read_only(tensor: torch.Tensor, chunks: int) -> Binding:
    """Bind a copy of a buffer that the call must not change (reduce, except at the root)."""
    staged = plain(tensor).clone()
    return Binding(((staged.data_ptr(), _size(staged, False), 1, chunks),), None, (staged,))


def gathered(
    outputs: Sequence[torch.Tensor] | None, own: torch.Tensor, layout: BlockLayout
) -> Binding:
    """Bind one block per rank, the own one in place: allgather and gather.

    `outputs` are the tensors for the blocks in rank order, or one tensor for all of them; None
    where there is no output (gather, except at the root). Blockwise ones are used in place, and
    those of an allgather may differ in size, with one chunk each; others have to be contiguous in
    memory.
    """
    rank, ranks, chunks, blockwise, _ = layout
    size = own.nbytes
    if outputs is not None and len(outputs) == 1:
        landing = _landing(outputs[0])
        _place(own, _bytes_of(landing)[rank * size : (rank + 1) * size])
        rows = ((landing.data_ptr(), size, ranks, chunks),)
        return Binding(rows, _copy_all(outputs, [landing]), (landing, *outputs))
    if outputs is not None and blockwise:
        staged = _landings(outputs)
        _place(own, _bytes_of(staged[rank]))
        rows = tuple((tensor.data_ptr(), tensor.nbytes, 1, chunks) for tensor in staged)
        if any(block != size for _, block, _, _ in rows):
            rows = _framed(rows)
        return Binding(rows, _copy_all(outputs, staged), (*staged, *outputs))
    for tensor in outputs or ():
        check_result(tensor)
    gathered_bytes = torch.empty(ranks * size, dtype=torch.uint8, device="cpu")
    _place(own, gathered_bytes[rank * size : (rank + 1) * size])
    after = None
    if outputs is not None:
        blocks = zip(gathered_bytes.view(ranks, size), outputs, strict=True)
        after = _copy_all(outputs, [block.view(to.dtype).view(to.shape) for block, to in blocks])
    return Binding(((gathered_bytes.data_ptr(), size, ranks, chunks),), after, (gathered_bytes,))


def scattered(
    inputs: Sequence[torch.Tensor] | None, output: torch.Tensor, layout: BlockLayout, *, moved: bool
) -> Binding:
    """Bind one block per rank of which the own one is the result: reduce_scatter and scatter.

    The inputs are copied, unless the plan keeps them. None where there are none (scatter, except
    at the root). Those of a reduce_scatter by a plan that keeps them may differ in size, with one
    chunk each.
    """
    rank, ranks, chunks, blockwise, keeps_inputs = layout
    if blockwise and keeps_inputs:
        return _scattered_in_place(inputs, output, layout, moved)
    check_result(output)
    landing = real(output.detach())
    block = landing.numel()
    input_blocks = torch.empty(ranks * block, dtype=landing.dtype, device="cpu")
    if inputs is not None:
        read = [real(tensor.detach()) for tensor in inputs]
        for part, tensor in zip(_parts(input_blocks, read), read, strict=True):
            part.copy_(tensor)
    own = input_blocks[rank * block : (rank + 1) * block].view(landing.shape)
    after = _copy_all([landing], [own])
    elements = block * landing.element_size() if moved else block
    return Binding(((input_blocks.data_ptr(), elements, ranks, chunks),), after, (input_blocks,))


def _scattered_in_place(
    inputs: Sequence[torch.Tensor] | None, output: torch.Tensor, layout: BlockLayout, moved: bool
) -> Binding:
    """Bind without staging: the own block is the output, the others are the inputs in place."""
    rank, ranks, chunks, _, _ = layout
    landing = _landing(output)
    own, size = landing.data_ptr(), landing.nbytes
    read: list[torch.Tensor] = []
    addresses = [own] * ranks  # never read without inputs
    sizes = [size] * ranks
    if inputs is not None:
        read = [plain(tensor.detach()) for tensor in inputs]
        if len(read) > 1:
            sizes = [tensor.nbytes for tensor in read]
        addresses = _block_addresses(read, size, ranks)
        blocks = zip(range(ranks), addresses, sizes, strict=True)
        if any(own - nbytes < at < own + size for r, at, nbytes in blocks if r != rank):
            read = [tensor.clone() for tensor in read]
            addresses = _block_addresses(read, size, ranks)
        if addresses[rank] != own and size:
            block = read[rank] if len(read) > 1 else read[0].reshape(ranks, -1)[rank]
            _place(block, _bytes_of(landing))
    addresses[rank] = own
    if any(nbytes != size for nbytes in sizes):
        _check_frames(sizes)
    unit = 1 if moved else real(landing.detach()).element_size()
    rows = tuple(
        (address, nbytes // unit, 1, chunks)
        for address, nbytes in zip(addresses, sizes, strict=True)
    )
    return Binding(rows, _copy_all([output], [landing]), (landing, *read))


def exchanged(
    output: torch.Tensor,
    source: torch.Tensor,
    layout: BlockLayout,
    splits: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Binding:
    """Bind an all-to-all of equal blocks, or of blocks of the given sizes.

    `splits` are those of the output and of the source, along the first dimension.
    """
    _, ranks, chunks, _, _ = layout
    landing = _landing(output)
    (sent,) = _apart([plain(source)], [landing])
    if splits is None:
        rows = tuple((t.data_ptr(), t.nbytes // ranks, ranks, chunks) for t in (sent, landing))
    else:
        rows = _framed(
            [*_split_rows(sent, splits[1], chunks), *_split_rows(landing, splits[0], chunks)]
        )
    return Binding(rows, _copy_all([output], [landing]), (sent, landing))


def exchanged_lists(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], chunks: int
) -> Binding:
    """Bind an all-to-all of one tensor per rank and direction."""
    landing = [_landing(tensor) for tensor in outputs]
    sent = _apart([plain(tensor) for tensor in inputs], landing)
    rows = _framed([(tensor.data_ptr(), tensor.nbytes, 1, chunks) for tensor in (*sent, *landing)])
    return Binding(rows, _copy_all(outputs, landing), (*sent, *landing))


def flattened(
    tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Return the tensors' elements in one new buffer, and a function that copies them back."""
    for tensor in tensors:
        check_result(tensor)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return flat, _copy_all(tensors, _parts(flat, tensors))


def _factor(tensor: torch.Tensor, op: Any) -> torch.Tensor:
    # NCCL rounds a factor to the type of the tensor before it multiplies
    factor = torch.as_tensor(op.factor, device="cpu").reshape(())
    return factor.to(tensor.dtype)


def _name(op: ReduceOp) -> str:
    kinds = ReduceOp.RedOpType.__members__
    return next((name for name, kind in kinds.items() if operator.eq(op, kind)), repr(op))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values as a contiguous tensor: itself, or a copy."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def _landing(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself if data can be received into it, else a buffer of its size."""
    check_result(tensor)
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _landings(tensors: Tensors) -> list[torch.Tensor]:
    """Return the `_landing` of every tensor, or new buffers for all if any share memory.

    A rank sends from there, what it received, too, while it receives into others.
    """
    landings = [_landing(tensor) for tensor in tensors]
    ranges = sorted(map(_range, landings))
    if all(first + size <= second for (first, size), (second, _) in pairwise(ranges)):
        return landings
    return [torch.empty(to.shape, dtype=to.dtype, device="cpu") for to in tensors]


def _size(tensor: torch.Tensor, moved: bool) -> int:
    return tensor.nbytes if moved else tensor.numel()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, as a flat view."""
    # a contiguous tensor of less than two elements may have any strides
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _block_addresses(tensors: Sequence[torch.Tensor], size: int, ranks: int) -> list[int]:
    """Return the address of every rank's block of `size` bytes: a tensor each, or one for all."""
    if len(tensors) > 1:
        return [tensor.data_ptr() for tensor in tensors]
    first = tensors[0].data_ptr()
    return [first + rank * size for rank in range(ranks)]


def _split_rows(tensor: torch.Tensor, splits: Sequence[int], chunks: int) -> list[Segment]:
    row_bytes = tensor.nbytes // tensor.shape[0] if tensor.dim() and tensor.shape[0] else 0
    rows: list[Segment] = []
    address = tensor.data_ptr()
    for split in splits:
        rows.append((address, split * row_bytes, 1, chunks))
        address += split * row_bytes
    return rows


def _framed(rows: Sequence[Segment]) -> tuple[Segment, ...]:
    """Check rows of blocks of any sizes, of which a chunk is sent in one frame."""
    _check_frames([size for _, size, _, _ in rows])
    return tuple(rows)


def _check_frames(sizes: Sequence[int]) -> None:
    """Raise InputError unless blocks of these bytes fit in one frame each."""
    largest = max(sizes, default=0)
    if largest > _LARGEST_FRAME_BYTES:
        raise InputError(
            f"a block has {largest} bytes, blocks that may differ in size at most "
            f"{_LARGEST_FRAME_BYTES}: use a call whose blocks are equal (all_to_all_single "
            "without split sizes, all_gather_into_tensor), or make several calls"
        )


def _apart(sources: Tensors, landing: Tensors) -> list[torch.Tensor]:
    """Return `sources`, but copies of those that share memory with one of `landing`.

    Messages are received while others are sent. All tensors are contiguous.
    """
    overlapping = overlaps(map(_range, sources), map(_range, landing))
    return [
        tensor.clone() if overlaps_landing else tensor
        for tensor, overlaps_landing in zip(sources, overlapping, strict=True)
    ]


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


def _place(tensor: torch.Tensor, target: torch.Tensor) -> None:
    """Copy `tensor` to the bytes `target`, as many, unless they are its own."""
    source = plain(tensor)
    distance = abs(source.data_ptr() - target.data_ptr())
    if not distance:
        return
    if distance < target.nbytes:  # torch copies nothing to memory that is partly the source's
        source = source.clone()
    target.copy_(_bytes_of(source))


def _copy_all(
    tensors: Sequence[torch.Tensor], staged: Sequence[torch.Tensor]
) -> Callable[[], None] | None:
    """Return a function that copies each buffer to its tensor, where they are not the same."""
    pairs = [
        (tensor.detach(), buffer)
        for tensor, buffer in zip(tensors, staged, strict=True)
        if buffer is not tensor
    ]
    if not pairs:
        return None

    def after() -> None:
        for tensor, buffer in pairs:
            tensor.copy_(buffer)

    return after


def _parts(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of `flat` with the shapes of `tensors`, one after the other."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
