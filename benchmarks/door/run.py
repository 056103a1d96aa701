"""The door: what somebody meets who has just installed headrace, or tries to."""

import sys

from benchmarks.door import doctor
from benchmarks.sections import run_sections

SECTIONS = (doctor,)

if __name__ == "__main__":
    sys.exit(run_sections("door", __doc__, SECTIONS))
