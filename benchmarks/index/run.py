"""Index: an ordered map that shapes itself to its workload, against the best ordered maps."""

import sys

from benchmarks.index import (
    answers,
    append,
    batch,
    chosen,
    durable,
    figures,
    latency,
    memory,
    phases,
    python,
    scan,
    threads,
    unique,
)
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (
    unique,
    append,
    batch,
    scan,
    memory,
    latency,
    threads,
    durable,
    chosen,
    phases,
    python,
    figures,
    answers,
)

if __name__ == "__main__":
    sys.exit(run_sections("index", __doc__, SECTIONS))
