"""Encode and decode of the codecs, one thread, beside a plain copy, torch and the stock hook.

25 MB are a bucket of DDP. A rate counts the bytes that a loop must read and write, once each; the
copy rate is that of the faster of ``torch.Tensor.copy_`` and ``numpy.copyto`` between arrays of 25
MB, in the same rounds. Times are the processor's, of this process with all its threads (the
stock hook decodes in a thread of Gloo's): other work on the machine does not count.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks.compression.lowrank import (
    OurPowerSGD,
    StockPowerSGD,
    alone,
    errors,
    matrices,
)
from benchmarks.compression.resnet import resnet50_shapes
from benchmarks.harness import Report
from headrace.compression.averaging import Averager
from headrace.compression.codecs import loops
from headrace.compression.codecs.requests import run_together

SECTION = "codecs"
ELEMENTS = 25_000_000 // 4
BUCKET = 512
SHARE = 0.01

PAPER_MS: Mapping[str, float | None] = {
    "mstopk:1%": 103,
    "dgc:1%": 221,
    "topk:1%": 273,
    "randomk:1%": 163,
    "sign": 16,
    "qsgd:2": 39,
    "terngrad": 94,
    "powersgd:4": 45,
    "atomo:4": 1586,
    "minmax:4": None,
    "minmax:8": None,
    "fp8": None,
    "fp16": None,
    "bf16": None,
    "none": None,
}
"""Codecs, and the paper's times on a V100 (Table 4.1)."""

RATES = {"sign": "sign", "4 bits": "4bit", "8 bits": "8bit", "bf16": "bf16"}
"""Loops with a bar, and its name."""


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {
        **{f"{bar}-of-copy-rate": ">= 0.5" for bar in RATES.values()},
        "topk-over-torch": ">= 5",
        "powersgd-over-stock": ">= 1.5",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure with one thread of torch, then restore their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rounds = 7 if quick else 25
        _rates(report, rounds)
        _topk(report, 3 if quick else 9)
        _powersgd(report, 5 if quick else 15)
        _table41(report, 2 if quick else 5)
    finally:
        torch.set_num_threads(threads)


def medians_s(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each action; in every round each runs once."""
    spent: dict[str, list[float]] = {name: [] for name in actions}
    gc.collect()
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            begun = time.process_time()
            action()
            spent[name].append(time.process_time() - begun)
    return {name: statistics.median(times) for name, times in spent.items()}


def gradient(elements: int, seed: int = 0) -> torch.Tensor:
    """Return values like a gradient's: normal, of scales that differ from part to part."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=generator)
    scales = torch.exp(torch.randn(elements // 4096 + 1, generator=generator) - 7)
    return values.mul_(scales.repeat_interleave(4096)[:elements])


_Loop = tuple[int, Callable[[], object], Callable[[], object]]
"""Bytes that encoding touches, as decoding does, and both."""


def _loops(given: torch.Tensor, decoded: torch.Tensor, scale: float) -> dict[str, _Loop]:
    """Return the loops by name, from `given` to `decoded`."""
    signs = torch.zeros(-(-ELEMENTS // 8), dtype=torch.uint8)
    half = torch.zeros(ELEMENTS, dtype=torch.bfloat16)
    ranges = torch.zeros(-(-ELEMENTS // BUCKET), 2)
    codes = {bits: torch.zeros(-(-ELEMENTS * bits // 8), dtype=torch.uint8) for bits in (4, 8)}
    touched: dict[str, _Loop] = {
        "sign": (
            given.nbytes + signs.nbytes,
            lambda: loops.pack_signs(given, signs),
            lambda: loops.unpack_signs(signs, torch.tensor([scale]), decoded),
        ),
        "bf16": (
            given.nbytes + half.nbytes,
            lambda: half.copy_(given),
            lambda: decoded.copy_(half),
        ),
    }
    for bits, packed in codes.items():
        touched[f"{bits} bits"] = (
            given.nbytes + packed.nbytes + ranges.nbytes,
            lambda b=bits, c=packed: loops.quantize(given, b, BUCKET, c, ranges),
            lambda b=bits, c=packed: loops.dequantize(c, ranges, b, BUCKET, decoded),
        )
    norms, levels = torch.zeros(len(ranges)), torch.zeros(-(-ELEMENTS // 4), dtype=torch.uint8)
    for name, euclidean in (("qsgd 2 bits", True), ("terngrad", False)):
        touched[name] = (
            given.nbytes + levels.nbytes + norms.nbytes,
            lambda e=euclidean: loops.encode_levels(given, 2, BUCKET, e, 16, levels, norms),
            lambda: loops.decode_levels(levels, norms, 2, BUCKET, decoded),
        )
    return touched


def _rates(report: Report, rounds: int) -> None:
    given, decoded = gradient(ELEMENTS), torch.zeros(ELEMENTS)
    other, scale = torch.zeros(ELEMENTS), float(given.abs().mean())
    touched = _loops(given, decoded, scale)
    actions: dict[str, Callable[[], object]] = {
        "copy torch": lambda: other.copy_(given),
        "copy numpy": lambda: np.copyto(other.numpy(), given.numpy()),
    }
    for name, (_, encode, decode) in touched.items():
        encode()
        decode()
        _verify(name, given, decoded, scale)
        actions |= {f"{name} encode": encode, f"{name} decode": decode}
    spent = medians_s(actions, rounds)
    copy_s = min(spent["copy torch"], spent["copy numpy"])
    copied = 2 * given.nbytes / copy_s
    report.row("loops, 25 MB", loop="copy", ms=1e3 * copy_s, gb_per_s=copied / 1e9)
    for name, (touches, _, _) in touched.items():
        worst = math.inf
        for half_way in ("encode", "decode"):
            seconds = spent[f"{name} {half_way}"]
            share = touches / seconds / copied
            worst = min(worst, share)
            report.row(
                "loops, 25 MB",
                loop=f"{name} {half_way}",
                ms=1e3 * seconds,
                gb_per_s=touches / seconds / 1e9,
                of_copy_rate=share,
            )
        if name in RATES:
            report.bar(f"{RATES[name]}-of-copy-rate", worst)


def _verify(name: str, given: torch.Tensor, decoded: torch.Tensor, scale: float) -> None:
    """Compare decoded values with what NumPy makes of the same input."""
    values = given.numpy()
    if name == "sign":
        expected = np.where(values >= 0, np.float32(scale), -np.float32(scale))
        bound = np.zeros(1, np.float32)
    elif name == "bf16":
        expected, bound = values, np.abs(values) * 2**-8
    elif name in ("qsgd 2 bits", "terngrad"):  # one level: 0 or the norm
        buckets = np.pad(values, (0, -len(values) % BUCKET)).reshape(-1, BUCKET)
        norm = np.linalg.norm(buckets, axis=1) if "qsgd" in name else np.abs(buckets).max(1)
        expected, bound = values, np.repeat(1.0001 * norm, BUCKET)[: len(values)]
    else:
        buckets = np.pad(values, (0, -len(values) % BUCKET), "edge").reshape(-1, BUCKET)
        levels = 2 ** int(name.split()[0]) - 1
        step = (buckets.max(1) - buckets.min(1)) / levels
        expected, bound = values, np.repeat(0.5001 * step, BUCKET)[: len(values)]
    if not (np.abs(decoded.numpy() - expected) <= bound).all():
        raise AssertionError(f"{name}: decoded values are further off than the code allows")


def _topk(report: Report, rounds: int) -> None:
    given, k = gradient(ELEMENTS), round(SHARE * ELEMENTS)
    magnitudes = given.abs()
    indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
    spent = medians_s(
        {
            "torch.topk": lambda: torch.topk(magnitudes, k, sorted=False),
            "headrace": lambda: loops.select_topk(given, k, indices, values),
        },
        rounds,
    )
    chosen = magnitudes[indices.long()].sort(descending=True).values
    ascending = bool((indices[1:] > indices[:-1]).all())
    largest = torch.equal(chosen, torch.topk(magnitudes, k).values)
    if not (ascending and largest and torch.equal(values, given[indices.long()])):
        raise AssertionError("topk: other elements than the largest were chosen")
    for name, seconds in spent.items():
        report.row("TopK 1%, 25 MB", by=name, ms=1e3 * seconds)
    report.bar("topk-over-torch", spent["torch.topk"] / spent["headrace"])


def _powersgd(report: Report, rounds: int) -> None:
    given = matrices()
    estimates = [matrix.clone() for matrix in given]
    vector = torch.cat([matrix.flatten() for matrix in given])
    start = vector.clone()
    ours = OurPowerSGD(given)
    with alone() as group:
        lost = errors(group, given)
        stock = StockPowerSGD(group, vector, given)

        def reset() -> None:
            vector.copy_(start)
            for estimate, matrix in zip(estimates, given, strict=True):
                estimate.copy_(matrix)

        spent: dict[str, list[float]] = {"powerSGD_hook": [], "headrace": []}
        for _ in range(rounds + 2):
            reset()
            spent["powerSGD_hook"].append(_once_s(stock.step))
            spent["headrace"].append(_once_s(lambda: ours.step(estimates)))
    seconds = {name: statistics.median(times[2:]) for name, times in spent.items()}
    for name in seconds:
        report.row(
            "PowerSGD 4, ResNet-50's matrices",
            by=name,
            ms=1e3 * seconds[name],
            relative_error=lost[name],
        )
    if lost["headrace"] > 1.01 * lost["powerSGD_hook"]:
        raise AssertionError(f"powersgd: the error is larger than the stock hook's: {lost}")
    report.bar("powersgd-over-stock", seconds["powerSGD_hook"] / seconds["headrace"])


def _table41(report: Report, rounds: int) -> None:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for codec, paper in PAPER_MS.items():
        most = 1 if codec.startswith("atomo") else rounds + 1
        times = {f"{device}_ms": 1e3 * _step_s(codec, device, most) for device in devices}
        report.row(
            "codecs of ResNet-50's gradient (Table 4.1), 102 MB",
            codec=codec,
            **times,
            paper_v100_ms=paper,
        )


def _step_s(codec: str, device: str, rounds: int) -> float:
    """Return the seconds that one rank computes in a step: encoding, aggregation, decoding.

    The first round, which makes residuals, counts only where it is alone. On a GPU it is the time
    until the device is through.
    """
    shapes = {f"p{number}": shape for number, shape in enumerate(resnet50_shapes())}
    sizes = [math.prod(shape) for shape in shapes.values()]
    start = gradient(sum(sizes)).to(device)
    vector = torch.empty_like(start)
    named = zip(shapes.items(), vector.split(sizes), strict=True)
    gradients = [(name, part.view(shape)) for (name, shape), part in named]
    averager = Averager(codec, shapes, rank=0, ranks=1)

    def step() -> None:
        for generators in (averager.add(gradients, last=True), averager.finish()):
            for generator in generators:
                run_together([generator])
        if device == "cuda":
            torch.cuda.synchronize()

    times: list[float] = []
    for _ in range(rounds):
        vector.copy_(start)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(_once_s(step, time.perf_counter if device == "cuda" else time.process_time))
    if not bool(vector.isfinite().all()):
        raise AssertionError(f"{codec}: the mean is not finite")
    return statistics.median(times[1:] or times)


def _once_s(action: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    begun = clock()
    action()
    return clock() - begun
