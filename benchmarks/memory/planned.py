"""Cells of the full planning tables, which take hours, over several sittings.

::

    PYTHONPATH=. .venv/bin/python -m benchmarks.memory.planned --minutes 120

plans the cells that are left until the time is over, and appends each to planned.jsonl, which git
has (`benchmarks.kept.CommittedRows`).
"""

import argparse
import sys
import time

from benchmarks.memory.planning import plan_left, planned_cells


def main() -> int:
    """Plan cells that are left, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of this sitting")
    end = time.monotonic() + 60 * parser.parse_args().minutes
    left = plan_left(planned_cells(), quick=False, until=lambda: time.monotonic() >= end)
    print(f"{left} cells left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
