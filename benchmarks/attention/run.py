"""Attention over shared and shorter keys and values against PyTorch's: time, bytes, clustering."""

import sys

import torch

from benchmarks.attention import (
    decode,
    generate,
    gpu,
    grouped,
    latency,
    peak,
    pressed,
    prompt,
    quality,
    sizes,
    weights,
)
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (
    decode,
    grouped,
    prompt,
    sizes,
    peak,
    generate,
    latency,
    quality,
    weights,
    pressed,
    *((gpu,) if torch.cuda.is_available() else ()),
)

if __name__ == "__main__":
    sys.exit(run_sections("attention", __doc__, SECTIONS))
