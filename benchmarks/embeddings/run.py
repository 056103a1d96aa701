"""Embedding rows at the trainers before a step needs them: decided, moved, waited for."""

import sys

from benchmarks.embeddings import (
    cacher,
    pooled,
    readers,
    recovery,
    results,
    servers,
    steps,
    synchronised,
)
from benchmarks.sections import run_sections

if __name__ == "__main__":
    sys.exit(
        run_sections(
            "embeddings",
            __doc__,
            (results, pooled, steps, synchronised, cacher, readers, servers, recovery),
        )
    )
