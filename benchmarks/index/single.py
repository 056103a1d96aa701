"""Single calls from Python against SortedDict: processor time of a call, the loop's included."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import headrace
from benchmarks.harness import Report
from benchmarks.index import answers

_CALLS = 20_000
_ROUNDS = 9
_BARS = {
    "a value": "python-get-over-sorteddict",
    "least key not below": "python-bound-over-sorteddict",
}

Calls = dict[str, tuple[Callable[[int], Any], Callable[[int], Any], list[int]]]


def bars() -> dict[str, str]:
    return dict.fromkeys(_BARS.values(), ">= 1")


def measure(report: Report, *, quick: bool) -> None:
    """Measure each call on both by turns; the fastest round of each counts."""
    from sortedcontainers import SortedDict

    loaded = 100_000 if quick else 1_000_000
    random = np.random.default_rng(3)
    keys = np.unique(random.integers(0, 1 << 62, loaded))
    index = headrace.Index(keys, np.arange(len(keys)))
    rival = SortedDict(zip(keys.tolist(), range(len(keys)), strict=True))
    asked = random.choice(keys, _CALLS).tolist()
    for name, (ours, theirs, arguments) in _calls(index, rival, asked).items():
        answers.count(sum(ours(key) != theirs(key) for key in arguments[:1000]))
        ns, rival_ns = _fastest(ours, theirs, arguments)
        report.row(
            "single calls, ns", call=name, loaded=len(keys), headrace=ns, sorteddict=rival_ns
        )
        if name in _BARS:
            report.bar(_BARS[name], rival_ns / ns)


def _calls(index: headrace.Index, rival: Any, asked: list[int]) -> Calls:
    above = [key + 1 for key in asked]
    return {
        "a value": (index.get, rival.get, asked),
        "whether present": (index.__contains__, rival.__contains__, above),
        "least key not below": (
            lambda key: index.lower_bound(key)[0],
            lambda key: next(rival.irange(key), None),
            above,
        ),
        "largest key not above": (
            index.floor,
            lambda key: next(rival.irange(None, key, reverse=True), None),
            above,
        ),
        "keys below": (index.rank, rival.bisect_left, above),
        "key at a position": (
            index.select,
            rival.keys().__getitem__,
            [key % len(rival) for key in asked],
        ),
    }


def _fastest(
    ours: Callable[[int], Any], theirs: Callable[[int], Any], arguments: list[int]
) -> tuple[float, float]:
    times = [(_seconds(ours, arguments), _seconds(theirs, arguments)) for _ in range(_ROUNDS)]
    ns, rival_ns = (1e9 * min(column) / len(arguments) for column in zip(*times, strict=True))
    return ns, rival_ns


def _seconds(call: Callable[[int], Any], arguments: Iterable[int]) -> float:
    begun = time.process_time()
    for argument in arguments:
        call(argument)
    return time.process_time() - begun
