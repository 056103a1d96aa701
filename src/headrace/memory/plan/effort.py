"""Effort of the search for a schedule; apart from it, for quick start-up of commands."""

from enum import StrEnum

from headrace.errors import InputError


class SolveEffort(StrEnum):
    """Level of effort: time of the search, and the gap that ends it."""

    QUICK = "quick"
    NORMAL = "normal"
    THOROUGH = "thorough"


def parse_effort(text: str) -> SolveEffort:
    """Return the effort of that name.

    Raises
    ------
    InputError : there is none.
    """
    try:
        return SolveEffort(text)
    except ValueError:
        raise InputError(f"effort is {text!r}, needs one of {', '.join(SolveEffort)}") from None
