"""Embedding rows: deciding which ones caches fetch, keep and evict."""

import sys

from benchmarks.embeddings import cacher
from benchmarks.sections import run_sections

if __name__ == "__main__":
    sys.exit(run_sections("embeddings", __doc__, (cacher,)))
