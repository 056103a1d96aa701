"""The door: installing headrace, its first results, and the diagnosis of an installation."""

import sys

from benchmarks.door import doctor, documents, wheel
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (doctor, documents, wheel)

if __name__ == "__main__":
    sys.exit(run_sections("door", __doc__, SECTIONS))
