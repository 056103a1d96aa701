"""Loops over signs, codes and the largest elements, against NumPy: native ones and torch's."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from headrace import _native
from headrace.compression.codecs import loops

SIZES = (0, 1, 7, 8, 9, 63, 1000, 66_000)
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-45, 3e38, -3e38)


@pytest.fixture(autouse=True, params=["native", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(loops, "_arrays", lambda *_tensors: [])
    return request.param


def vector(n: int, seed: int = 0, special: bool = False) -> torch.Tensor:
    values = np.random.default_rng([n, seed]).standard_normal(n).astype(np.float32)
    if special and n > 20:
        values[: len(SPECIAL)] = SPECIAL
    return torch.from_numpy(values)


def test_signs_are_packed_from_the_lowest_bit_and_unpacked() -> None:
    for n in SIZES:
        given = vector(n, special=True)
        bits = torch.full((-(-n // 8),), 255, dtype=torch.uint8)
        loops.pack_signs(given, bits)
        expected = np.packbits(given.numpy() >= 0, bitorder="little")
        np.testing.assert_array_equal(bits.numpy(), expected)
        out = torch.empty(n)
        loops.unpack_signs(bits, torch.tensor([0.3]), out)
        scale = np.float32(0.3)
        np.testing.assert_array_equal(out.numpy(), np.where(given.numpy() >= 0, scale, -scale))


def test_majority_counts_a_tie_as_set() -> None:
    for ranks in (1, 2, 3, 5, 8):
        for k in (0, 1, 9, 8195):
            bits = np.random.default_rng([ranks, k]).integers(0, 256, (ranks, k), dtype=np.uint8)
            out = torch.empty(k, dtype=torch.uint8)
            loops.majority(torch.from_numpy(bits), out)
            counts = np.unpackbits(bits, axis=1).astype(int).sum(0)
            np.testing.assert_array_equal(np.unpackbits(out.numpy()), 2 * counts >= ranks)


def slow_quantize(values: np.ndarray, bits: int, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and (minimum, step) of each bucket, of finite values."""
    levels = np.float32(2**bits - 1)
    codes, ranges = [], []
    for begin in range(0, len(values), bucket):
        part = values[begin : begin + bucket]
        step = part.max() / levels - part.min() / levels
        scaled = np.zeros_like(part) if step == 0 else np.rint((part - part.min()) / step)
        codes.append(np.clip(scaled, 0, levels).astype(np.uint8))
        ranges.append((part.min(), step))
    return np.concatenate(codes or [np.zeros(0, np.uint8)]), np.array(ranges).reshape(-1, 2)


def test_codes_and_ranges_are_those_of_the_definition() -> None:
    for bits in range(2, 9):
        for n in SIZES:
            given = vector(n, bits)
            codes = torch.full((-(-n * bits // 8),), 255, dtype=torch.uint8)
            ranges = torch.empty((-(-n // 64), 2))
            loops.quantize(given, bits, 64, codes, ranges)
            slow, slow_ranges = slow_quantize(given.numpy(), bits, 64)
            unpacked = np.unpackbits(codes.numpy(), bitorder="little")[: n * bits]
            weights = 1 << np.arange(bits)
            np.testing.assert_array_equal(unpacked.reshape(n, bits) @ weights, slow)
            np.testing.assert_array_equal(ranges.numpy(), slow_ranges)
            start = vector(n, 99)
            for add in (False, True):
                out = start.clone()
                loops.dequantize(codes, ranges, bits, 64, out, add=add)
                low, step = np.repeat(slow_ranges, 64, 0)[:n].T
                expected = low + slow * step + (start.numpy() if add else 0)
                np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_quantised_values_are_within_half_a_step_also_of_tiny_and_huge_ranges() -> None:
    for scale in (1e-45, 1e-40, 1e-30, 1.0, 1e37):
        given = vector(300, 5) * scale
        codes, ranges = torch.empty(150, dtype=torch.uint8), torch.empty((2, 2))
        loops.quantize(given, 4, 256, codes, ranges)
        out = torch.empty(300)
        loops.dequantize(codes, ranges, 4, 256, out)
        step = ranges[:, 1].repeat_interleave(256)[:300]
        whole = (given.max() - given.min()) * (scale < 1e-43)  # a step may be rounded to 0
        assert bool(((out - given).abs() <= step * 0.501 + whole).all())


def test_a_bucket_that_is_not_finite_decodes_to_nan_alone() -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        given = vector(200)
        given[70] = bad
        codes, ranges = torch.empty(100, dtype=torch.uint8), torch.empty((4, 2))
        loops.quantize(given, 4, 64, codes, ranges)
        out = torch.empty(200)
        loops.dequantize(codes, ranges, 4, 64, out)
        nan = out.isnan()
        assert bool(nan[64:128].all())
        assert int(nan.sum()) == 64


def slow_uniform(key: int, n: int) -> np.ndarray:
    """Return random numbers of n elements: words of Philox4x32-10, in whole numbers of Python."""
    mask, words = 2**32 - 1, []
    for counter in range(-(-n // 4)):
        block, low, high = [counter, 0, 0, 0], key & mask, key >> 32
        for _ in range(10):
            even, odd = 0xD2511F53 * block[0], 0xCD9E8D57 * block[2]
            block = [odd >> 32 ^ block[1] ^ low, odd & mask, even >> 32 ^ block[3] ^ high]
            block.append(even & mask)
            low, high = (low + 0x9E3779B9) & mask, (high + 0xBB67AE85) & mask
        words += block
    return np.array([word >> 8 for word in words[:n]], np.float32) / np.float32(2**24)


def test_uniform_numbers_are_the_known_answers_of_philox() -> None:
    """Those of the authors' Random123 library, for the counter and key 0; any element can begin."""
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    first = loops.uniform_numbers(0, 0, 4, torch.device("cpu"))
    np.testing.assert_array_equal(first.numpy() * 2**24, [word >> 8 for word in known])
    key = 0xFEDCBA9876543210
    drawn = loops.uniform_numbers(key, 0, 1003, torch.device("cpu"))
    np.testing.assert_array_equal(drawn.numpy(), slow_uniform(key, 1003))
    assert torch.equal(loops.uniform_numbers(key, 400, 603, torch.device("cpu")), drawn[400:])


def slow_levels(
    values: np.ndarray, bits: int, bucket: int, euclidean: bool, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Signed levels, and norms of each bucket, of finite values."""
    levels, norms = [], []
    for begin in range(0, len(values), bucket):
        part = values[begin : begin + bucket].astype(np.float64)
        norm = np.sqrt((part**2).sum()) if euclidean else np.abs(part).max()
        scaled = np.abs(part) / (norm or 1) * (2 ** (bits - 1) - 1)
        level = np.floor(scaled) + (uniform[begin : begin + bucket] < scaled % 1)
        levels.append(np.where(part < 0, -level, level))
        norms.append(norm)
    return np.concatenate(levels or [np.zeros(0)]), np.array(norms)


def test_levels_are_those_of_the_definition_with_the_same_random_numbers() -> None:
    for bits in range(2, 9):
        for n in SIZES[:-1]:
            for euclidean in (False, True):
                given, key = vector(n, bits), 2**63 + 17 * bits + n
                codes = torch.full((-(-n * bits // 8),), 255, dtype=torch.uint8)
                norms = torch.empty(-(-n // 64))
                loops.encode_levels(given, bits, 64, euclidean, key, codes, norms)
                uniform = slow_uniform(key, n)
                slow, slow_norms = slow_levels(given.numpy(), bits, 64, euclidean, uniform)
                top = 2 ** (bits - 1) - 1
                unpacked = np.unpackbits(codes.numpy(), bitorder="little")[: n * bits]
                levels = (unpacked.reshape(n, bits) @ (1 << np.arange(bits))).astype(int) - top
                # rounding in float32 moves an element to the other level where it is as close
                assert np.sum(levels != slow) <= 1, (bits, n)
                np.testing.assert_allclose(norms.numpy(), slow_norms, rtol=1e-6)
                start = vector(n, 99)
                for add in (False, True):
                    out = start.clone()
                    loops.decode_levels(codes, norms, bits, 64, out, add=add)
                    values = levels / top * np.repeat(slow_norms, 64)[:n]
                    expected = values + (start.numpy() if add else 0)
                    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_levels_are_unbiased() -> None:
    """The mean of draws is within five standard errors of each element, and of their sum."""
    given, draws = vector(203, 3), 500
    for bits, euclidean in ((2, False), (2, True), (4, True)):
        codes, norms = torch.empty(-(-203 * bits // 8), dtype=torch.uint8), torch.empty(4)
        out, total = torch.empty(203), torch.zeros(203, dtype=torch.float64)
        for key in range(draws):
            loops.encode_levels(given, bits, 64, euclidean, key << 40, codes, norms)
            loops.decode_levels(codes, norms, bits, 64, out)
            total += out.double() - given
        unit = norms.double().repeat_interleave(64)[:203] / (2 ** (bits - 1) - 1)
        share = (given.abs() / unit).frac()
        variance = unit**2 * share * (1 - share) / draws
        # a level that is hardly ever drawn may be once more: counts are not normal
        bound = 5 * variance.sqrt() + 3 * unit / draws
        assert bool((total.abs() / draws <= bound).all()), (bits, euclidean)
        assert float(total.sum().abs()) / draws <= 5 * float(variance.sum().sqrt())
        shrunk = float((total * given.sign()).sum().abs()) / draws
        assert shrunk <= 5 * float(variance.sum().sqrt()), (bits, euclidean)


def test_levels_of_a_part_do_not_depend_on_what_follows() -> None:
    """Random numbers are a function of key and place: work can be split at buckets."""
    given, key = vector(4096, 8), 77
    for bits, euclidean in ((2, False), (5, True)):
        codes, norms = torch.empty(512 * bits, dtype=torch.uint8), torch.empty(8)
        loops.encode_levels(given, bits, 512, euclidean, key, codes, norms)
        for n in (512, 2048, 3000):
            some, few = torch.empty(-(-n * bits // 8), dtype=torch.uint8), torch.empty(-(-n // 512))
            loops.encode_levels(given[:n], bits, 512, euclidean, key, some, few)
            full = n // 512 * 512
            assert torch.equal(some[: full * bits // 8], codes[: full * bits // 8])
            assert torch.equal(few[: full // 512], norms[: full // 512])


def test_levels_of_a_bucket_that_is_not_finite_are_zero_and_decode_to_nan() -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        given = vector(200)
        given[70] = bad
        codes, norms, out = torch.empty(100, dtype=torch.uint8), torch.empty(4), torch.empty(200)
        loops.encode_levels(given, 4, 64, True, 1, codes, norms)
        loops.decode_levels(codes, norms, 4, 64, out)
        nan = out.isnan()
        assert bool(nan[64:128].all())
        assert int(nan.sum()) == 64


def slow_topk(values: np.ndarray, k: int) -> np.ndarray:
    magnitudes = np.abs(values).view(np.int32)
    return np.sort(np.argsort(-magnitudes.astype(np.int64), kind="stable")[:k])


def test_the_largest_magnitudes_are_selected_and_ties_go_to_the_lower_index() -> None:
    for n in SIZES:
        ties = torch.from_numpy(np.random.default_rng(n).integers(-3, 4, n).astype(np.float32))
        for given in (vector(n, special=True), ties, torch.zeros(n)):
            for k in {0, min(1, n), n // 100, n // 2, n}:
                indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
                loops.select_topk(given, k, indices, values)
                expected = slow_topk(given.numpy(), k)
                np.testing.assert_array_equal(indices.numpy(), expected)
                np.testing.assert_array_equal(values.numpy(), given.numpy()[expected])


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_packed_in_any_number_of_bits(bits: int) -> None:
    for m in (0, 1, 8, 77):
        codes = torch.from_numpy(np.random.default_rng([bits, m]).integers(0, 2**bits, m))
        packed = torch.full((-(-m * bits // 8) + 1,), 7, dtype=torch.uint8)
        loops.pack_codes(codes, bits, packed)
        assert int(packed[-1]) == 7  # past the end
        out = torch.empty(m, dtype=torch.int64)
        loops.unpack_codes(packed, bits, out)
        assert torch.equal(out, codes)


def adversarial(n: int, kind: int) -> torch.Tensor:
    """Normal, zeros of either sign, subnormal, ties, huge, with NaN and infinities, any bits."""
    random = np.random.default_rng([n, kind])
    values = random.standard_normal(n).astype(np.float32)
    places = random.random(n) < 0.02
    match kind:
        case 1:
            values *= 0
        case 2:
            values *= np.float32(1e-40)
        case 3:
            values = np.rint(values)
        case 4:
            values *= np.float32(5e37)
        case 5:
            values[places] = random.choice(np.array(SPECIAL, np.float32), places.sum())
        case 6:
            values = random.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
        case _:
            pass
    return torch.from_numpy(values)


def results(given: torch.Tensor, bits: int, bucket: int) -> list[torch.Tensor]:
    """Return the outputs of all loops."""
    n = len(given)
    signs = torch.empty(-(-n // 8), dtype=torch.uint8)
    codes = torch.empty(-(-n * bits // 8), dtype=torch.uint8)
    ranges, unsigned, decoded = torch.empty(-(-n // bucket), 2), torch.empty(n), torch.ones(n)
    loops.pack_signs(given, signs)
    loops.unpack_signs(signs, torch.tensor([-0.7]), unsigned)
    loops.quantize(given, bits, bucket, codes, ranges)
    loops.dequantize(codes, ranges, bits, bucket, decoded, add=bits % 2 == 0)
    eighths, scales, rounded = signs.new_empty(n), torch.empty(len(ranges)), torch.ones(n)
    loops.encode_float8(given, bucket, eighths, scales)
    loops.decode_float8(eighths, scales, bucket, rounded, add=bits % 2 == 0)
    found = [signs, unsigned, codes, ranges, decoded, scales, rounded]
    for euclidean in (False, True):
        found += [torch.empty_like(codes), torch.empty(len(ranges)), torch.ones(n)]
        loops.encode_levels(given, bits, bucket, euclidean, 2**64 - 1 - n, *found[-3:-1])
        loops.decode_levels(found[-3], found[-2], bits, bucket, found[-1], add=bits % 2 == 0)
    for k in (n // 100, n // 3):
        found += [torch.empty(k, dtype=torch.int32), torch.empty(k)]
        loops.select_topk(given, k, *found[-2:])
    return found


def test_native_loops_give_the_numbers_of_torchs(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if implementation == "torch":
        return
    for kind in range(7):
        for n in (0, 1, 7, 8, 9, 511, 513, 2049, 70_001):
            given = adversarial(n, kind)
            bits, bucket = 2 + (kind + n) % 7, (8, 64, 520, 1 << 17)[(kind + n) % 4]
            native = results(given, bits, bucket)
            with monkeypatch.context() as patched:
                patched.setattr(loops, "_arrays", lambda *_tensors: [])
                for ours, theirs in zip(native, results(given, bits, bucket), strict=True):
                    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_tensors_that_are_not_contiguous_are_handled() -> None:
    given, out = vector(1000), torch.zeros(125, 2, dtype=torch.uint8)
    loops.pack_signs(given, out[:, 1])
    np.testing.assert_array_equal(
        out[:, 1].numpy(), np.packbits(given.numpy() >= 0, bitorder="little")
    )
    bits = torch.arange(60, dtype=torch.uint8).view(3, 20)
    votes, expected = torch.empty(7, dtype=torch.uint8), torch.empty(7, dtype=torch.uint8)
    loops.majority(bits[:, 5:12], votes)
    loops.majority(bits[:, 5:12].contiguous(), expected)
    assert torch.equal(votes, expected)


def test_native_loops_refuse_sizes_that_do_not_fit() -> None:
    floats, whole = np.zeros(64, np.float32), np.zeros(64, np.int32)
    payload, ranges = np.zeros(32, np.uint8), np.zeros((1, 2), np.float32)
    rows, short = payload.reshape(4, 8), (payload[:16], floats[:2])
    calls: list[tuple[str, Callable[[], None]]] = [
        ("out has 7 elements, needs 8", lambda: _native.pack_signs(floats, payload[:7])),
        ("bits has 7 elements, needs 8", lambda: _native.unpack_signs(payload[:7], 1, floats)),
        ("out has 9 elements, needs 8", lambda: _native.majority(rows, payload[:9])),
        ("rows that are not contig", lambda: _native.majority(rows[:, ::2], payload[:4])),
        ("codes has 31 elements", lambda: _native.quantize(floats, 4, 64, payload[:31], ranges)),
        ("ranges has 1 elements", lambda: _native.quantize(floats, 4, 32, payload, ranges)),
        ("bits is 9, needs 2 to 8", lambda: _native.dequantize(payload, ranges, 9, 64, floats)),
        ("bits is 0, needs 1 to 8", lambda: _native.pack_codes(payload, 0, payload)),
        ("packed has 32 elements", lambda: _native.unpack_codes(payload, 7, payload)),
        ("bucket is 12, needs a mult", lambda: _native.dequantize(payload, ranges, 4, 12, floats)),
        ("codes has 32 elements", lambda: _native.encode_float8(floats, 64, payload, floats[:1])),
        ("bucket is 0, needs", lambda: _native.decode_float8(payload, floats, 0, floats[:32])),
        ("codes has 16 elements", lambda: _native.encode_levels(floats, 4, 64, True, 1, *short)),
        ("norms has 2 elements", lambda: _native.decode_levels(payload, short[1], 4, 64, floats)),
        ("bits is 1, needs 2", lambda: _native.decode_levels(payload, floats, 1, 64, floats)),
        ("k is 65, needs at most 64", lambda: _native.select_topk(floats, 65, whole, floats)),
        ("values has 64 elements", lambda: _native.select_topk(floats, 3, whole[:3], floats)),
    ]
    for message, call in calls:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError):
        _native.pack_signs(floats.astype(np.float64), payload[:8])
    with pytest.raises(TypeError):
        _native.pack_signs(floats[::2], payload[:4])


@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float16])
def test_rounding_adds_what_is_rounded_off_to_the_residual(type_: torch.dtype) -> None:
    for n in SIZES:
        given, residual = vector(n, special=True), vector(n, seed=1)
        before, rounded = residual.clone(), torch.empty(n, dtype=type_)
        loops.round_with_residual(given, rounded, residual)
        torch.testing.assert_close(rounded, given.to(type_), rtol=0, atol=0, equal_nan=True)
        rest = given - rounded.float()
        expected = torch.where(rest.isfinite(), before + rest, before)
        torch.testing.assert_close(residual, expected, rtol=0, atol=0)
