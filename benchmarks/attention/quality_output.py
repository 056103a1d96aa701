"""Rows, notes and figures of the quality section for one model, stored as a line of JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Output:
    """Rows, notes and figures of bars of a model.

    Attributes
    ----------
    rows : table and columns, in order.
    figures : bar and figure; the worst of all models counts.
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

    @property
    def columns(self) -> dict[str, Any]:
        """The fields by name: ``Output(**columns)`` is this one."""
        return asdict(self)
