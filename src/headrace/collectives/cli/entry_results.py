"""Results of plans of a book."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryResult:
    """A plan of a book: its range of sizes, and figures for the size it was scored at."""

    collective: str
    root: int
    from_bytes: int
    to_bytes: int | None
    generator: str
    chunks: int
    scored_bytes: int
    predicted_us: float
    bound_us: float
    gap: float
