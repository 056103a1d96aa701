"""Memory that comes back: after erasing and `clear()`, and what many small maps take."""

import subprocess
import sys

import numpy as np

from benchmarks.harness import Report
from headrace import Index

_KEYS = 1_000_000
_LEFT = 10_000
_SMALL_MAPS = 2_000
_SMALL_KEYS = 100
# A process of its own: in this one, maps would take memory that was resident before.
_PROGRAM = f"""
import numpy, os
from headrace import Index

def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keys = numpy.arange({_SMALL_KEYS}, dtype=numpy.uint64) * 7919
Index(keys, keys)
before = resident_bytes()
maps = [Index(keys, keys) for _ in range({_SMALL_MAPS})]
print(resident_bytes() - before)
"""


def bars() -> dict[str, str]:
    return {
        "erased-over-copy": "<= 3",
        "cleared-bytes": "<= 0",
        "small-map-bytes-per-key": "<= 64",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure the same in quick runs: it takes seconds."""
    del quick
    keys = np.arange(_KEYS, dtype=np.uint64)
    cases = {"a range": keys >= _LEFT, "scattered": keys % (_KEYS // _LEFT) != 0}
    ratios: list[float] = []
    cleared: list[int] = []
    for name, gone in cases.items():
        index = Index(keys, keys)
        loaded = index.nbytes
        index.erase(keys[gone])
        erased, copied = index.nbytes, index.copy().nbytes
        index.shrink_to_fit()
        shrunk = index.nbytes
        index.clear()
        ratios.append(erased / copied)
        cleared.append(index.nbytes)
        report.row(
            "memory after 99% of a million keys were erased, bytes",
            erased_keys=name,
            loaded=loaded,
            erased=erased,
            copy=copied,
            shrunk=shrunk,
            cleared=cleared[-1],
        )
    report.bar("erased-over-copy", round(max(ratios), 3))
    report.bar("cleared-bytes", max(cleared))
    taken = int(subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True))
    report.bar("small-map-bytes-per-key", round(taken / (_SMALL_MAPS * _SMALL_KEYS), 2))
