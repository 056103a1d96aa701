"""Benchmarks of several sections: choosing among them, and running them into one report.

A section is a module of its claim's folder. Its name is the module's, or SECTION where the module
cannot have that name (`random` would hide Python's)::

    SECTION = "random"
    def bars() -> dict[str, str]: ...
    NOT_IN_QUICK = frozenset({"largest"})  # names of bars that a quick run leaves out, if any
    FULL_ONLY = True  # where a quick run leaves all of it out, and says so
    def measure(report: Report, *, quick: bool) -> None: ...

and the claim's ``run.py`` lists them::

    SECTIONS = (shm, small, memory)

    if __name__ == "__main__":
        sys.exit(run_sections("executor", __doc__, SECTIONS))
"""

import traceback
from collections.abc import Sequence
from typing import Protocol

from benchmarks.harness import Options, Report, options_parser
from benchmarks.termination import ended_by_sigterm


class Section(Protocol):
    """One part of a benchmark, with bars of its own."""

    __name__: str

    def bars(self) -> dict[str, str]:
        """Return bar name -> bound, all of this section."""
        ...

    def measure(self, report: Report, *, quick: bool) -> None:
        """Measure, and give the bars."""
        ...


def parse(
    description: str | None, sections: Sequence[Section], argv: Sequence[str] | None = None
) -> tuple[Options, tuple[Section, ...]]:
    """Return the common options, and the sections to run: all, or that of ``--only``."""
    named = {section_name(section): section for section in sections}
    parser = options_parser(description)
    parser.add_argument("--only", choices=named, help="one section alone")
    given = vars(parser.parse_args(argv))
    only: str | None = given.pop("only")
    return Options(**given), tuple(sections) if only is None else (named[only],)


def section_name(section: Section) -> str:
    """Return a section's name for `--only`."""
    return getattr(section, "SECTION", section.__name__.rsplit(".", 1)[-1])


def not_in_quick(section: Section) -> frozenset[str]:
    """Return the names of the bars that a quick run of a section does not measure."""
    if is_full_only(section):
        return frozenset(section.bars())
    return getattr(section, "NOT_IN_QUICK", frozenset[str]())


def is_full_only(section: Section) -> bool:
    """Return whether a quick run leaves a section out."""
    return getattr(section, "FULL_ONLY", False)


def run_sections(
    claim: str,
    description: str | None,
    sections: Sequence[Section],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a claim's sections by the command line, and return the exit code.

    A section that fails leaves its bars unmeasured and does not affect the others. SIGTERM ends the
    run, also within a command that a section runs in this process: temporary files are removed, and
    all processes that it started are ended.

    Parameters
    ----------
    claim : the folder under ``benchmarks/``.
    description : the text of ``--help``.
    """
    options, chosen = parse(description, sections, argv)
    bars = {name: bound for section in chosen for name, bound in section.bars().items()}
    left_out = frozenset[str]().union(*map(not_in_quick, chosen))
    full_only = [section for section in chosen if options.quick and is_full_only(section)]
    with (
        ended_by_sigterm(),
        Report(claim, bars=bars, options=options, not_in_quick=left_out) as report,
    ):
        for section in chosen:
            if section in full_only:
                continue
            try:
                section.measure(report, quick=options.quick)
            except Exception as error:  # the others' figures remain useful
                traceback.print_exc()
                report.note(f"{section.__name__} stopped: {type(error).__name__}: {error}")
        if full_only:
            names = ", ".join(map(section_name, full_only))
            report.note(f"left out of a quick run, without QUICK=1 they are measured: {names}")
    return report.exit_code
