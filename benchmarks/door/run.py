"""The door: installing headrace, first results, diagnosis, and examples inside other tools."""

import sys

from benchmarks.door import clone, command_line, doctor, documents, errors, integrations, wheel
from benchmarks.sections import Section, run_sections

SECTIONS: tuple[Section, ...] = (
    command_line,
    errors,
    doctor,
    documents,
    integrations,
    wheel,
    clone,
)

if __name__ == "__main__":
    sys.exit(run_sections("door", __doc__, SECTIONS))
