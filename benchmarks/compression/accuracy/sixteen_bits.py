"""The study's smallest task with parameters and gradients in bfloat16; some minutes.

::

    PYTHONPATH=. .venv/bin/python -m benchmarks.compression.accuracy.sixteen_bits
"""

import sys

import torch

from benchmarks.compression.accuracy.study import SEEDS
from benchmarks.compression.accuracy.tasks import TASKS
from benchmarks.compression.accuracy.training import train

TASK = "characters"


def main() -> None:
    """Train uncompressed and with codecs, in bfloat16, and print accuracy and bytes."""
    task = TASKS[TASK]
    for codec in ("none", task.low, "powersgd:4+bf16", "minmax:4"):
        run = train(task, SEEDS[0], codec, dtype=torch.bfloat16)
        megabytes = run["bytes"] / 1e6
        sys.stdout.write(f"{codec:16} {run['accuracy']:.2f}% {megabytes:.1f} MB {run['cpu_s']} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
