"""Rows of a section that takes long, on disk until it ends: an interrupted run goes on there."""

import json
import sys
from typing import Any

from benchmarks.harness import ROOT


class KeptRows:
    """Rows by key, in the order in which they were made.

    Parameters
    ----------
    claim, section : whose rows; those of a quick run are apart.
    quiet : names of values that are too long to print.
    """

    def __init__(
        self, claim: str, section: str, *, quick: bool, quiet: tuple[str, ...] = ()
    ) -> None:
        kind = "quick" if quick else "full"
        self._path = ROOT / claim / "results" / f"{section}-{kind}.jsonl"
        self._section, self._quiet = section, quiet
        text = self._path.read_text() if self._path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a kill while a row was written
            self._path.write_text(whole)
        self.rows: dict[str, dict[str, Any]] = dict(map(json.loads, whole.splitlines()))

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row, and print it."""
        self.rows[key] = row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps([key, row]) + "\n")
        shown = {name: value for name, value in row.items() if name not in self._quiet}
        print(f"{self._section}: {json.dumps(shown)}", file=sys.stderr)

    def clear(self) -> None:
        """Delete the file: all rows have been made."""
        self._path.unlink(missing_ok=True)
