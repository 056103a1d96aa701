"""Compression: speed of the codecs, and what they are worth."""

import sys

from benchmarks.compression import (
    accuracy,
    auto,
    crossover,
    detector,
    model,
    resumed,
    sent,
    sixteen_bits,
    speed,
    stock,
)
from benchmarks.sections import run_sections

SECTIONS = (
    accuracy,
    detector,
    crossover,
    model,
    auto,
    speed,
    sent,
    resumed,
    stock,
    sixteen_bits,
)

if __name__ == "__main__":
    sys.exit(run_sections("compression", __doc__, SECTIONS))
