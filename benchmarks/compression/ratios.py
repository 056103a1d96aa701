"""Times of minmax and fp8 over that of qsgd:2, for the bundled profiles.

``python -m benchmarks.compression.ratios`` prints what `headrace.compression.plan.models` scales
the paper's qsgd:2 by. All three run as torch's operators, as on a GPU, in turns and in one thread.
The numbers that qsgd draws are counted as those of torch's generator: headrace's own, equal
on all devices, take five times as long, and would make the ratios too small.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headrace.compression.codecs import loops

_ELEMENTS = 1 << 22
_ROUNDS = 9
_BITS = (4, 8)


def _strided(count: int, dtype: torch.dtype) -> Tensor:
    """Return memory that is not contiguous: it keeps native loops out."""
    return torch.empty((count, 2), dtype=dtype)[:, 0]


def _work(vector: Tensor) -> Mapping[str, Callable[[], None]]:
    """Return each codec's encoding and decoding, and the draws of qsgd's numbers in two ways."""
    n, out = len(vector), torch.empty(len(vector))
    numbers, pairs = _strided(n // 512, torch.float32), torch.empty((n // 1024, 4))[:, ::2]

    def minmax(bits: int) -> None:
        codes = _strided(n * bits // 8, torch.uint8)
        loops.quantize(vector, bits, 1024, codes, pairs)
        loops.dequantize(codes, pairs, bits, 1024, out)

    def float8() -> None:
        codes, scales = _strided(n, torch.uint8), numbers[: n // 1024]
        loops.encode_float8(vector, 1024, codes, scales)
        loops.decode_float8(codes, scales, 1024, out)

    def qsgd() -> None:
        codes = _strided(n * 2 // 8, torch.uint8)
        loops.encode_levels(vector, 2, 512, True, 7, codes, numbers)
        loops.decode_levels(codes, numbers, 2, 512, out)

    def philox() -> None:
        for begin in range(0, n, 1 << 16):
            loops.uniform_numbers(7, begin, 1 << 16, vector.device)

    def drawn() -> None:
        for _ in range(0, n, 1 << 16):
            torch.rand(1 << 16)

    return {
        **{f"minmax:{bits}": lambda bits=bits: minmax(bits) for bits in _BITS},
        "fp8": float8,
        "qsgd:2": qsgd,
        "philox": philox,
        "rand": drawn,
    }


def ratios(rounds: int = _ROUNDS) -> dict[str, float]:
    """Return medians, over the rounds, of a codec's time over that of qsgd:2."""
    torch.set_num_threads(1)
    work = _work(torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(1)) * 1e-3)
    taken: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        seconds: dict[str, float] = {}
        for name, run in work.items():
            began = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - began
        if not number:
            continue
        reference = seconds["qsgd:2"] - seconds["philox"] + seconds["rand"]
        for name in work:
            taken.setdefault(name, []).append(seconds[name] / reference)
    return {name: statistics.median(column) for name, column in taken.items()}


if __name__ == "__main__":
    for name, ratio in ratios().items():
        sys.stdout.write(f"{name} {ratio:.2f} of qsgd:2 with numbers of torch's generator\n")
