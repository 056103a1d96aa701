"""Attention over shared and shorter keys and values against PyTorch's: time, bytes, clustering."""

import sys

from benchmarks.attention import decode, generate, grouped, latency, prompt, quality, sizes
from benchmarks.sections import run_sections

SECTIONS = (decode, grouped, prompt, sizes, generate, latency, quality)

if __name__ == "__main__":
    sys.exit(run_sections("attention", __doc__, SECTIONS))
