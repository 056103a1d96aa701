"""Index: an ordered map that shapes itself to its workload, against the best ordered maps."""

import os
import sys

from benchmarks.index import (
    answers,
    append,
    batch,
    chosen,
    default,
    durable,
    durable_python,
    figures,
    forks,
    iterators,
    latency,
    memory,
    phases,
    python,
    returned,
    scan,
    single,
    threads,
    unique,
)
from benchmarks.index.maps import HUGE_PAGES
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (
    unique,
    append,
    batch,
    scan,
    default,
    iterators,
    memory,
    returned,
    latency,
    threads,
    durable,
    durable_python,
    chosen,
    phases,
    python,
    single,
    forks,
    figures,
    answers,
)

if __name__ == "__main__":
    if os.environ.get("GLIBC_TUNABLES") != HUGE_PAGES:  # trials in this process as the maps
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "GLIBC_TUNABLES": HUGE_PAGES})
    sys.exit(run_sections("index", __doc__, SECTIONS))
