"""The network's shape, found, used and followed: racks, 2LHA, training, Autotune."""

import sys

from benchmarks.network import (
    affinity,
    autotune,
    overhead,
    probing,
    racks,
    table1,
    training,
    two_level,
)
from benchmarks.sections import run_sections

SECTIONS = (racks, probing, affinity, table1, two_level, training, autotune, overhead)

if __name__ == "__main__":
    sys.exit(run_sections("network", __doc__, SECTIONS))
