"""Cells of the full planning tables, which take hours, over several sittings.

::

    PYTHONPATH=. .venv/bin/python -m benchmarks.memory.planned --minutes 120

plans the cells that are left until the time is over, and appends each to planned.jsonl, which git
has: in a later run, and elsewhere, they stand in for cells not planned there. Each says by which
commit, when and on which machine it was made. Cells of other limits are left aside.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.harness import machine

PLANNED = Path(__file__).parent / "planned.jsonl"


def settings_of(*parts: object) -> str:
    """Return a digest of what a cell's figures depend on beside the planner."""
    return sha256(repr(parts).encode()).hexdigest()[:12]


class PlannedCells:
    """Rows by key, in the order in which they were made.

    Parameters
    ----------
    settings : key of a cell -> settings of those that are taken, and of those that are added.
    path : the file; without it there are none.
    """

    def __init__(self, settings: Callable[[str], str], path: Path = PLANNED) -> None:
        self._path, self._settings = path, settings
        text = path.read_text() if path.is_file() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a kill while a row was written
            path.write_text(whole)
        self.cells = [
            cell
            for cell in map(json.loads, whole.splitlines())
            if cell["settings"] == settings(cell["key"])
        ]
        self.earlier = len(self.cells)

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows; of a key that was made again the newest."""
        return {cell["key"]: cell["row"] for cell in self.cells}

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Append a row, and print it."""
        here = machine()
        cell = {
            "key": key,
            "settings": self._settings(key),
            "commit": _commit(),
            "date": date.today().isoformat(),
            "machine": f"{here['cores']} x {here['processor']}",
            "row": row,
        }
        self.cells.append(cell)
        with self._path.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(f"planning: {json.dumps(row)}", file=sys.stderr)

    @property
    def note(self) -> str:
        """Where the rows come from, in words."""
        found = [
            f"{cell['commit']} on {cell['date']} ({cell['machine']})"
            for cell in self.cells[: self.earlier]
        ]
        sources = "; ".join(f"{found.count(each)} by {each}" for each in dict.fromkeys(found))
        return (
            f"planning: {len(self.cells) - self.earlier} cells planned in this run, "
            f"{self.earlier} kept in git and made before"
            + (f": {sources}" if sources else "")
            + f"; rm benchmarks/memory/{PLANNED.name} to plan all here"
        )

    def clear(self) -> None:
        """Keep the file: its rows are for later runs, too."""


def _commit() -> str | None:
    """Return the commit, with ``-dirty`` if another tracked file than the rows' is changed."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=PLANNED.parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "-uno", "--", ":/", f":(exclude){PLANNED.name}")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit


def main() -> int:
    """Plan cells that are left, until the time is over."""
    from benchmarks.memory.planning import plan_left, planned_cells

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of this sitting")
    end = time.monotonic() + 60 * parser.parse_args().minutes
    left = plan_left(planned_cells(), quick=False, until=lambda: time.monotonic() >= end)
    print(f"{left} cells left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
