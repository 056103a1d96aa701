"""Memory: training steps within a budget, and what they cost."""

import sys

import torch

from benchmarks.memory import (
    ablations,
    correct,
    estimate,
    gpt,
    gpu,
    harm,
    implementations,
    measuring,
    models,
    no_harm,
    phases,
    planning,
    precision,
    programs,
    resnet,
)
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (
    resnet,
    no_harm,
    gpt,
    planning,
    ablations,
    phases,
    models,
    estimate,
    measuring,
    correct,
    harm,
    programs,
    precision,
    implementations,
    *((gpu,) if torch.cuda.is_available() else ()),
)

if __name__ == "__main__":
    sys.exit(run_sections("memory", __doc__, SECTIONS))
