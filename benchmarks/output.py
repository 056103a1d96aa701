"""Measurements of one part of a section, stored as a line of JSON (`benchmarks.kept.KeptRows`)."""

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness import Report


@dataclass(slots=True, kw_only=True)
class Output:
    """Rows, notes and figures of bars of one part of a section, such as a model or a network.

    Attributes
    ----------
    rows : table and columns, in order.
    figures : bar and figure; parts may have figures of the same bar.
    """

    rows: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: list[tuple[str, float]] = field(default_factory=list)

    def row(self, table: str, /, **columns: Any) -> None:
        """Add a row to a table."""
        self.rows.append((table, columns))

    def note(self, text: str) -> None:
        """Add a remark."""
        self.notes.append(text)

    def add_rows_to(self, report: Report) -> None:
        """Add rows and notes to a report."""
        for table, columns in self.rows:
            report.row(table, **columns)
        for text in self.notes:
            report.note(text)

    @property
    def columns(self) -> dict[str, Any]:
        """The fields by name: ``Output(**columns)`` is this one."""
        return asdict(self)
