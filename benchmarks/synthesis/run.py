"""Collective synthesis: gaps to proven bounds, planning time, rivals, and real links."""

import sys

from benchmarks.sections import run_sections
from benchmarks.synthesis import (
    ablations,
    exports,
    irregular,
    leave_one_out,
    links,
    nccl,
    random_cases,
    scale,
    table,
    table53,
)

SECTIONS = (
    table,
    irregular,
    random_cases,
    table53,
    scale,
    exports,
    links,
    nccl,
    ablations,
    leave_one_out,
)

if __name__ == "__main__":
    sys.exit(run_sections("synthesis", __doc__, SECTIONS))
