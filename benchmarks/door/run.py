"""The door: what somebody meets who has just installed headrace, or tries to."""

import sys

from benchmarks.door import doctor, wheel
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (doctor, wheel)

if __name__ == "__main__":
    sys.exit(run_sections("door", __doc__, SECTIONS))
