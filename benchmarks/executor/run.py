"""The executor against Gloo, Open MPI and iperf3: speed, overlap, processor time, soundness.

``--only NAME`` runs one section: shm, small, memory, tcp, overlap, cpu, soak.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from benchmarks.executor import cpu, memory, overlap, shm, small, soak, tcp
from benchmarks.harness import Options, Report, arguments

SECTIONS: tuple[ModuleType, ...] = (shm, small, memory, tcp, overlap, cpu, soak)
NAMES = {section.__name__.rsplit(".", 1)[1]: section for section in SECTIONS}


def parse(argv: Sequence[str] | None = None) -> tuple[Options, tuple[ModuleType, ...]]:
    """Return what every benchmark is told, and the sections to run."""
    only = argparse.ArgumentParser(add_help=False)
    only.add_argument("--only", choices=NAMES, help="one section alone")
    chosen, rest = only.parse_known_args(argv)
    sections = SECTIONS if chosen.only is None else (NAMES[chosen.only],)
    return arguments(__doc__, rest), sections


def main() -> int:
    """Run the sections; one that breaks leaves its bars unmeasured and the others alone."""
    options, sections = parse()
    bars = {name: bound for section in sections for name, bound in section.bars().items()}
    with Report("executor", bars=bars, options=options) as report:
        for section in sections:
            try:
                section.measure(report, quick=options.quick)
            except Exception as error:  # the others' figures are worth having
                traceback.print_exc()
                report.note(f"{section.__name__} stopped: {type(error).__name__}: {error}")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
