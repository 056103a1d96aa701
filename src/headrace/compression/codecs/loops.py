"""Loops over all elements: signs, codes of few bits, selection of the largest.

Results go to tensors that the caller provides. Contiguous ones on the CPU are handled by
`headrace._native`, in one thread and without the GIL; else torch's operators run, on any device, in
blocks, so that they need little memory beside the results: both give the same numbers. Bits and
codes are packed from the lowest bit of a byte on: element i has the bits from ``i * bits`` of the
payload.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headrace import _native

_BLOCK = 1 << 16
"""Elements that a loop on a CPU handles at once: its scratch stays in the second-level cache."""
_DEVICE_BLOCK = 1 << 24
"""The same on other devices, where starting a kernel takes longer than moving a block."""
_WORD = 0xFFFFFFFF
_E4M3_LARGEST = 448.0
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def pack_signs(vector: Tensor, out: Tensor) -> None:
    """Write one bit per element: 1 where it is 0 or above, 0 where below or NaN.

    Parameters
    ----------
    vector : float32 (n,).
    out : uint8 (ceil(n / 8),); the unused bits of the last byte are 0.
    """
    if arrays := _arrays(vector, out):
        _native.pack_signs(*arrays)
        return
    for begin, end in _blocks(vector, 8):
        pack_codes(vector[begin:end] >= 0, 1, out[begin // 8 :])


def unpack_signs(bits: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write `scale` where the element's bit is 1, and its negative elsewhere.

    Parameters
    ----------
    bits : uint8 (ceil(n / 8),), of `pack_signs`.
    scale : float32, one element.
    out : float32 (n,).
    """
    if arrays := _arrays(bits, out):
        _native.unpack_signs(arrays[0], float(scale), arrays[1])
        return
    for begin, end in _blocks(out, 8):
        unpack_codes(bits[begin // 8 :], 1, out[begin:end])
    # 0 and 1 become exactly -scale and scale
    out.mul_(2).sub_(1).mul_(scale.view(()))


def majority(bits: Tensor, out: Tensor) -> None:
    """Write the majority of the ranks' bits: 1 where at least half of them are.

    Parameters
    ----------
    bits : uint8 (ranks, k).
    out : uint8 (k,).
    """
    ranks, k = bits.shape
    if bits.is_cpu and bits.stride(1) == 1 and (arrays := _arrays(out)):
        _native.majority(bits.numpy(), *arrays)
        return
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    block = (_BLOCK if bits.device.type == "cpu" else _DEVICE_BLOCK) // 8
    for begin in range(0, k, block):
        part = bits[:, begin : begin + block]
        counts = torch.zeros((part.shape[1], 8), dtype=torch.int32, device=bits.device)
        for row in part:
            counts += (row[:, None] >> shifts) & 1
        pack_codes((2 * counts >= ranks).flatten(), 1, out[begin : begin + block])


def quantize(vector: Tensor, bits: int, bucket: int, codes: Tensor, ranges: Tensor) -> None:
    """Round to one of 2^bits equally spaced values, from a bucket's minimum to its maximum.

    With ``step = maximum / levels - minimum / levels`` and ``levels = 2^bits - 1``, an element's
    code is ``(element - minimum) / step``, rounded to nearest (half to even) and limited to 0 to
    levels; 0 if step is 0. Both values of a bucket that holds infinite values or NaN are NaN.

    Parameters
    ----------
    vector : float32 (n,).
    bits : 2 to 8.
    bucket : elements with a range of their own, a multiple of 8; the last bucket may be shorter.
    codes : uint8 (ceil(n * bits / 8),).
    ranges : float32 (ceil(n / bucket), 2): minimum and step.
    """
    if arrays := _arrays(vector, codes, ranges):
        _native.quantize(arrays[0], bits, bucket, arrays[1], arrays[2])
        return
    levels = (1 << bits) - 1
    for rows, begin in bucket_rows(vector, bucket):
        low, high = rows.amin(1), rows.amax(1)
        step = high / levels - low / levels
        finite = step.isfinite() & low.isfinite()
        low = torch.where(finite, low, torch.nan)
        step = torch.where(finite, step, torch.nan)
        scaled = (rows - low[:, None]).div_(step[:, None]).round_()
        scaled.nan_to_num_(nan=0).clamp_(0, levels)
        at = begin // bucket
        ranges[at : at + len(rows)].copy_(torch.stack((low, step), 1))
        pack_codes(scaled.flatten(), bits, codes[begin * bits // 8 :])


def dequantize(
    codes: Tensor, ranges: Tensor, bits: int, bucket: int, out: Tensor, add: bool = False
) -> None:
    """Write, or add, ``minimum + code * step`` for each element.

    Parameters
    ----------
    codes, ranges : of `quantize`, with the same `bits` and `bucket`.
    out : float32 (n,).
    """
    if arrays := _arrays(codes, ranges, out):
        _native.dequantize(arrays[0], arrays[1], bits, bucket, arrays[2], add)
        return
    for rows, begin in bucket_rows(out, bucket):
        values = torch.empty_like(rows)
        unpack_codes(codes[begin * bits // 8 :], bits, values.view(-1))
        low, step = ranges[begin // bucket : begin // bucket + len(rows)].unbind(1)
        values.mul_(step[:, None]).add_(low[:, None])
        rows.add_(values) if add else rows.copy_(values)


def encode_float8(vector: Tensor, bucket: int, codes: Tensor, scales: Tensor) -> None:
    """Round each bucket's elements over its scale to float8 e4m3.

    With the scale a bucket's largest magnitude becomes 448, the type's largest number; it is at
    least float32's smallest normal number. A bucket that holds infinite values or NaN decodes
    to NaN.

    Parameters
    ----------
    vector : float32 (n,).
    bucket : elements with a scale of their own, a multiple of 8; the last bucket may be shorter.
    codes : uint8 (n,).
    scales : float32 (ceil(n / bucket),).
    """
    if arrays := _arrays(vector, codes, scales):
        _native.encode_float8(arrays[0], bucket, arrays[1], arrays[2])
        return
    values = codes.view(torch.float8_e4m3fn)
    for rows, begin in bucket_rows(vector, bucket):
        scale = rows.abs().amax(1).div_(_E4M3_LARGEST).clamp_(min=_SMALLEST_NORMAL)
        scales[begin // bucket : begin // bucket + len(rows)] = scale
        values[begin : begin + rows.numel()] = (rows / scale[:, None]).flatten().to(values.dtype)


def decode_float8(
    codes: Tensor, scales: Tensor, bucket: int, out: Tensor, add: bool = False
) -> None:
    """Write, or add, the code's value times the scale for each element.

    Parameters
    ----------
    codes, scales : of `encode_float8`, with the same `bucket`.
    out : float32 (n,).
    """
    if arrays := _arrays(codes, scales, out):
        _native.decode_float8(arrays[0], arrays[1], bucket, arrays[2], add)
        return
    # a table of all values is faster than torch's conversion
    table = torch.arange(256, dtype=torch.uint8, device=out.device)
    table = table.view(torch.float8_e4m3fn).to(torch.float32)
    for rows, begin in bucket_rows(out, bucket):
        values = table.index_select(0, codes[begin : begin + rows.numel()].int()).view_as(rows)
        values.mul_(scales[begin // bucket : begin // bucket + len(rows), None])
        rows.add_(values) if add else rows.copy_(values)


def round_with_residual(vector: Tensor, rounded: Tensor, residual: Tensor) -> None:
    """Round to 16 bits, and add what is rounded off to a residual: nothing where it is not finite.

    Parameters
    ----------
    vector, residual : float32 (n,).
    rounded : bfloat16 or float16 (n,).
    """
    if arrays := _arrays(vector, rounded.view(torch.int16), residual):
        brain = rounded.dtype is torch.bfloat16
        _native.round_with_residual(arrays[0], brain, arrays[1].view("uint16"), arrays[2])
        return
    for begin, end in _blocks(vector, 1):
        exact, written = vector[begin:end], rounded[begin:end]
        written.copy_(exact)
        residual[begin:end].add_((exact - written).nan_to_num_(nan=0, posinf=0, neginf=0))


def encode_levels(
    vector: Tensor,
    bits: int,
    bucket: int,
    euclidean: bool,
    key: int,
    codes: Tensor,
    norms: Tensor,
) -> None:
    """Round to levels of a bucket's norm, up or down at random without bias.

    With ``s = 2^(bits-1) - 1``, an element's level is one of the two whole numbers beside
    ``s |element| / norm``, which is its expectation; the code is s plus the level with the
    element's sign. A bucket that holds infinite values or NaN has levels of 0 and a norm that is
    not finite. Codes depend on key and input alone: see `uniform_numbers`.

    Parameters
    ----------
    vector : float32 (n,).
    bits : 2 to 8.
    bucket : elements with a norm of their own, a multiple of 8; the last bucket may be shorter.
    euclidean : the norm is Euclidean; else the largest magnitude.
    key : of the random numbers, 0 to 2^64 - 1.
    codes : uint8 (ceil(n * bits / 8),).
    norms : float32 (ceil(n / bucket),).
    """
    if arrays := _arrays(vector, codes, norms):
        _native.encode_levels(arrays[0], bits, bucket, euclidean, key, arrays[1], arrays[2])
        return
    levels = (1 << (bits - 1)) - 1
    for rows, begin in bucket_rows(vector, bucket):
        norm = rows.abs().amax(1, keepdim=True)
        share = rows.abs().div_(norm).nan_to_num_(nan=0)
        if euclidean:  # of shares: squares neither overflow nor vanish
            squares = share.double().square_().sum(1, keepdim=True)
            length = squares.sqrt_().float().clamp_(min=1)
            share, norm = share.div_(length), norm.mul_(length)
        scaled = share.mul_(levels)
        level = scaled.floor()
        up = uniform_numbers(key, begin, rows.numel(), rows.device).view_as(rows) < scaled.sub_(
            level
        )
        level.add_(up).copysign_(rows).add_(levels)
        at = begin // bucket
        norms[at : at + len(rows)] = norm.view(-1)
        pack_codes(level.flatten(), bits, codes[begin * bits // 8 :])


def decode_levels(
    codes: Tensor, norms: Tensor, bits: int, bucket: int, out: Tensor, add: bool = False
) -> None:
    """Write, or add, ``(code - s) / s * norm`` for each element.

    Parameters
    ----------
    codes, norms : of `encode_levels`, with the same `bits` and `bucket`.
    out : float32 (n,).
    """
    if arrays := _arrays(codes, norms, out):
        _native.decode_levels(arrays[0], arrays[1], bits, bucket, arrays[2], add)
        return
    levels = (1 << (bits - 1)) - 1
    for rows, begin in bucket_rows(out, bucket):
        values = torch.empty_like(rows)
        unpack_codes(codes[begin * bits // 8 :], bits, values.view(-1))
        norm = norms[begin // bucket : begin // bucket + len(rows), None]
        values.sub_(levels).div_(levels).mul_(norm)
        rows.add_(values) if add else rows.copy_(values)


def uniform_numbers(key: int, begin: int, count: int, device: torch.device) -> Tensor:
    """Return the random numbers, of [0, 1), of elements from `begin` on: float32 (count,).

    Element i has the upper 24 bits of word i mod 4 of Philox4x32-10 (Salmon et al., 2011, "Parallel
    Random Numbers: As Easy as 1, 2, 3") with the counter i / 4: the same on all devices, whatever
    was drawn before.

    Parameters
    ----------
    key : 0 to 2^64 - 1.
    begin : a multiple of 4.
    """
    counter = torch.arange(begin // 4, -(-(begin + count) // 4), device=device)
    words = [counter & _WORD, counter >> 32, torch.zeros_like(counter), torch.zeros_like(counter)]
    low, high = key & _WORD, key >> 32
    for _ in range(10):
        # products of two words are unsigned numbers of 64 bits, of which torch keeps the bits
        even, odd = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            (odd >> 32 & _WORD) ^ words[1] ^ low,
            odd & _WORD,
            (even >> 32 & _WORD) ^ words[3] ^ high,
            even & _WORD,
        ]
        low, high = (low + 0x9E3779B9) & _WORD, (high + 0xBB67AE85) & _WORD
    return (torch.stack(words, 1).view(-1)[:count] >> 8).float().mul_(2.0**-24)


def select_topk(vector: Tensor, k: int, indices: Tensor, values: Tensor) -> None:
    """Write the k elements of largest magnitude, by ascending index.

    Magnitudes are compared by the bits of the floating-point numbers: NaN is above infinity. Of
    equal ones those of lower index are taken.

    Parameters
    ----------
    vector : float32 (n,), n below 2^31.
    k : 0 to n.
    indices : int32 (k,).
    values : float32 (k,).
    """
    if arrays := _arrays(vector, indices, values):
        _native.select_topk(arrays[0], k, arrays[1], arrays[2])
        return
    if k == 0:
        return
    magnitudes = vector.view(torch.int32) & 0x7FFFFFFF
    threshold = torch.topk(magnitudes, k, sorted=False).values.min()
    above, equal = magnitudes > threshold, magnitudes == threshold
    equal &= equal.cumsum(0) <= k - above.sum()
    # of a known size, for which a device is not waited for
    places = torch.nonzero_static(above.logical_or_(equal), size=k).view(-1)
    indices.copy_(places)
    torch.index_select(vector, 0, places, out=values)


def _arrays(*tensors: Tensor) -> list[Any]:
    """Return the tensors as NumPy's arrays of the same memory, [] where the CPU has not all.

    A call with arrays takes 2 us, one with tensors 20.
    """
    if all(tensor.is_cpu and tensor.is_contiguous() for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    return []


def pack_codes(codes: Tensor, bits: int, out: Tensor) -> None:
    """Write codes of `bits` bits (1 to 8) one after the other, from the lowest bit of a byte on.

    Parameters
    ----------
    codes : (m,), whole numbers below 2^bits of any type; of bool if `bits` is 1.
    out : uint8, at least ceil(m * bits / 8), of which so many are written.
    """
    used = -(-len(codes) * bits // 8)
    if arrays := _arrays(out[:used]):
        _native.pack_codes(codes.to(torch.uint8).contiguous().numpy(), bits, arrays[0])
        return
    groups = -(-len(codes) // 8)
    wide = torch.zeros(8 * groups, dtype=torch.int64, device=codes.device)
    wide[: len(codes)] = codes
    words = (wide.view(groups, 8) << _shifts(bits, codes.device)).sum(1)
    # a group of 8 codes is a word, of which the lowest `bits` bytes are used
    out[:used] = words.view(torch.uint8).view(groups, 8)[:, :bits].reshape(-1)[:used]


def unpack_codes(packed: Tensor, bits: int, out: Tensor) -> None:
    """Write the first codes of `packed` (see `pack_codes`) as numbers.

    Parameters
    ----------
    packed : uint8, at least ceil(m * bits / 8).
    out : (m,), of any type.
    """
    groups, used = -(-len(out) // 8), -(-len(out) * bits // 8)
    if arrays := _arrays(packed[:used]):
        codes = torch.empty(len(out), dtype=torch.uint8, device="cpu")
        _native.unpack_codes(arrays[0], bits, codes.numpy())
        out.copy_(codes)
        return
    flat = torch.zeros(groups * bits, dtype=torch.uint8, device=packed.device)
    flat[:used] = packed[:used]
    words = torch.zeros((groups, 8), dtype=torch.uint8, device=packed.device)
    words[:, :bits] = flat.view(groups, bits)
    codes = (words.view(torch.int64) >> _shifts(bits, packed.device)) & ((1 << bits) - 1)
    out.copy_(codes.view(-1)[: len(out)])


def bucket_rows(vector: Tensor, bucket: int) -> Iterator[tuple[Tensor, int]]:
    """Yield (rows, begin): views of full buckets, (some, bucket), then of the last shorter one.

    Rows begin at element `begin`, and are so few that what is computed of them is little memory.
    """
    for begin, end in _blocks(vector, bucket):
        full = begin + (end - begin) // bucket * bucket
        if full > begin:
            yield vector[begin:full].view(-1, bucket), begin
        if full < end:
            yield vector[full:end].view(1, -1), full


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8 * bits, bits, dtype=torch.int64, device=device)


def _blocks(vector: Tensor, unit: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of blocks that begin at multiples of `unit`, 8 or a multiple of it."""
    block = _BLOCK if vector.device.type == "cpu" else _DEVICE_BLOCK
    block = max(block // unit, 1) * unit
    for begin in range(0, len(vector), block):
        yield begin, min(begin + block, len(vector))
