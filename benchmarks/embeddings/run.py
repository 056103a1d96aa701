"""Embedding rows at the trainers before a step needs them: decided, moved, waited for."""

import sys

from benchmarks.embeddings import (
    accesses,
    adaptation,
    assignment,
    cacher,
    committed,
    pooled,
    predicted,
    readers,
    recovery,
    restoring,
    results,
    servers,
    steps,
    synchronised,
    workloads,
)
from benchmarks.sections import run_sections

if __name__ == "__main__":
    sys.exit(
        run_sections(
            "embeddings",
            __doc__,
            (
                results,
                pooled,
                steps,
                synchronised,
                predicted,
                committed,
                adaptation,
                workloads,
                accesses,
                assignment,
                cacher,
                readers,
                servers,
                recovery,
                restoring,
            ),
        )
    )
