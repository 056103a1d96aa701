"""The executor against Gloo, Open MPI and iperf3: speed, overlap, processor time, soundness."""

import sys

from benchmarks.executor import (
    cpu,
    groups,
    memory,
    overlap,
    shm,
    small,
    soak,
    suite,
    tcp,
    threads,
)
from benchmarks.sections import run_sections

SECTIONS = (shm, small, memory, tcp, overlap, cpu, threads, groups, soak, suite)

if __name__ == "__main__":
    sys.exit(run_sections("executor", __doc__, SECTIONS))
