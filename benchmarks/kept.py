"""Rows of a section that takes long, on disk: an interrupted run goes on where it was."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, machine


class KeptRows:
    """Rows by key, in the order in which they were measured; the file lasts until `clear`.

    Parameters
    ----------
    claim, section : whose rows; those of a quick run are apart.
    folder : of the file; None: the claim's results.
    quiet : names of values that are too long to print.
    """

    def __init__(
        self,
        claim: str,
        section: str,
        *,
        quick: bool,
        folder: Path | None = None,
        quiet: tuple[str, ...] = (),
    ) -> None:
        kind = "quick" if quick else "full"
        folder = folder or ROOT / claim / "results"
        self._open(folder / f"{section}-{kind}.jsonl", section, quiet)

    def _open(self, path: Path, section: str, quiet: tuple[str, ...] = ()) -> None:
        self._path, self._section, self._quiet = path, section, quiet
        text = path.read_text() if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        if complete != text:  # a kill while a row was written
            path.write_text(complete)
        lines = map(json.loads, complete.splitlines())
        # an interrupted run of an earlier version may have left lines of another form
        self._lines = [line for line in lines if isinstance(line, dict) and self._is_current(line)]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows; of a key that was measured again the newest."""
        return {line["key"]: line["row"] for line in self._lines}

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Append a row, and print it."""
        line = {"key": key, **self._origin(key), "row": row}
        self._lines.append(line)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        shown = {name: figure for name, figure in row.items() if name not in self._quiet}
        print(f"{self._section}: {json.dumps(shown)}", file=sys.stderr)

    def clear(self) -> None:
        """Delete the file: all rows have been measured."""
        self._path.unlink(missing_ok=True)

    def _is_current(self, line: dict[str, Any]) -> bool:  # noqa: ARG002
        return True

    def _origin(self, key: str) -> dict[str, Any]:  # noqa: ARG002
        return {}


class CommittedRows(KeptRows):
    """Rows in a file that git has: in a later run, and elsewhere, they stand in for measured ones.

    Each says by which commit, when and on which machine it was measured.

    Parameters
    ----------
    settings : key of a row -> settings of those that are read, and of those that are added; rows of
        other settings are left aside.
    made : rows and what was done for them, in words of `note`.
    """

    def __init__(
        self,
        path: Path,
        section: str,
        settings: Callable[[str], str],
        made: str = "cells planned",
    ) -> None:
        self._settings = settings
        self._made = made
        self._open(path, section)
        self._earlier = len(self._lines)

    @property
    def note(self) -> str:
        """Where the rows come from, in words."""
        origins = [
            f"{line['commit']} on {line['date']} ({line['machine']})"
            for line in self._lines[: self._earlier]
        ]
        sources = "; ".join(
            f"{origins.count(origin)} by {origin}" for origin in dict.fromkeys(origins)
        )
        return (
            f"{self._section}: {len(self._lines) - self._earlier} {self._made} in this run, "
            f"{self._earlier} kept in git and made before"
            + (f": {sources}" if sources else "")
            + f"; rm {os.path.relpath(self._path, ROOT.parent)} to have all made here"
        )

    def clear(self) -> None:
        """Keep the file: its rows are for later runs, too."""

    def _is_current(self, line: dict[str, Any]) -> bool:
        return line["settings"] == self._settings(line["key"])

    def _origin(self, key: str) -> dict[str, Any]:
        here = machine()
        return {
            "settings": self._settings(key),
            "commit": self._commit(),
            "date": date.today().isoformat(),
            "machine": f"{here['cores']} x {here['processor']}",
        }

    def _commit(self) -> str | None:
        """Return the commit, with ``-dirty`` if another tracked file than the rows' is changed."""

        def git(*arguments: str) -> str:
            return subprocess.run(
                ["git", *arguments],
                cwd=self._path.parent,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()

        try:
            commit = git("rev-parse", "--short=12", "HEAD")
            changed = git(
                "status", "--porcelain", "-uno", "--", ":/", f":(exclude){self._path.name}"
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return f"{commit}-dirty" if changed else commit


def settings_of(*parts: object) -> str:
    """Return a digest of what the figures of a row depend on beside the code."""
    return sha256(repr(parts).encode()).hexdigest()[:12]
