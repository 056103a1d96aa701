"""Collective synthesis: gaps to proven bounds, planning time, rivals, and real links."""

import sys

from benchmarks.harness import Report, arguments
from benchmarks.synthesis import ablations, irregular, links, nccl, scale, table, table53

SECTIONS = (table, irregular, table53, scale, links, nccl, ablations)


def main() -> int:
    """Run every section; one that breaks leaves its bars unmeasured and the others alone."""
    options = arguments(__doc__)
    bars = {name: bound for section in SECTIONS for name, bound in section.bars().items()}
    with Report("synthesis", bars=bars, options=options) as report:
        for section in SECTIONS:
            try:
                section.measure(report, quick=options.quick)
            except Exception as error:  # the others' figures are worth having
                report.note(f"{section.__name__} stopped: {type(error).__name__}: {error}")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
