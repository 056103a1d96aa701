"""The frame of every benchmark: rows, bars, the stored result and the last lines printed.

A benchmark is ``benchmarks/<claim>/run.py``::

    def main() -> int:
        options = arguments(__doc__)
        with Report("main-job", bars={"allreduce-16MiB": ">=0.93"}, options=options) as report:
            report.row("allreduce", backend="gloo", size="16 MiB", mbit_per_s=57.1)
            report.bar("allreduce-16MiB", 0.951)
        return report.exit_code

The bars are declared before anything is measured, so that a benchmark that fails half-way still
prints every one of them: without a figure a bar is SHORT, or `skipped` where a quick run leaves it
out by declaration. `benchmarks.sections` runs one that has several parts.
"""

import argparse
import json
import math
import operator
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from headrace.errors import InputError

ROOT = Path(__file__).resolve().parent
_PACKAGES = ("headrace", "torch", "numpy", "scipy", "scikit-learn", "pyarrow", "openmpi", "mpi4py")
_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Command line of a benchmark: `quick` ends in a minute, `keep` stores for git.

    Attributes
    ----------
    state : folder with which an interrupted run goes on; None: that of the results.
    """

    quick: bool = False
    keep: bool = False
    state: Path | None = None


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of every benchmark's options; its results are fields of `Options`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument("--keep", action="store_true", help="store the result where git sees it")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FOLDER",
        help="of rows by which an interrupted run goes on (default: beside the results)",
    )
    return parser


def arguments(description: str | None, argv: Sequence[str] | None = None) -> Options:
    """Parse a benchmark's command line."""
    return Options(**vars(options_parser(description).parse_args(argv)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A required figure, and the measured one (None: could not be measured, or `skipped`)."""

    name: str
    required: str
    figure: float | None = None
    skipped: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s]+", self.name):
            raise InputError(f"bar name is {self.name!r}, needs one word")
        self._bound()

    @property
    def ok(self) -> bool:
        """True if the figure was measured and keeps the bound."""
        compare, bound = self._bound()
        return self.figure is not None and bool(compare(self.figure, bound))

    def line(self) -> str:
        """Return the line that ends a benchmark's output: five words and a verdict."""
        figure = "unmeasured" if self.figure is None else _plain(self.figure)
        verdict = "ok" if self.ok else "skipped" if self.skipped else "SHORT"
        return f"BAR {self.name} {figure} required {self.required.replace(' ', '')} {verdict}"

    def _bound(self) -> tuple[Any, float]:
        found = re.fullmatch(r"(>=|<=)\s*([0-9.eE+-]+)", self.required)
        try:
            if found:
                return _COMPARE[found[1]], float(found[2])
        except ValueError:
            pass
        raise InputError(f"bar {self.name}: bound is {self.required!r}, needs '>= x' or '<= x'")


class Report:
    """Collects one run of one benchmark; prints and stores it when its ``with`` block ends.

    Parameters
    ----------
    claim : the folder under ``benchmarks/``.
    bars : bar name -> bound (">= x" or "<= x"), all that this claim has.
    options : from `arguments`; `quick` is part of the stored result.
    not_in_quick : names of the bars that a quick run does not measure: there, unless given, they
        are `skipped`; what was tried and failed is SHORT.
    folder : where results go (default: ``benchmarks/<claim>/results``).

    Raises
    ------
    InputError : if a bound is none, or `not_in_quick` names a bar that is not declared.
    """

    def __init__(
        self,
        claim: str,
        *,
        bars: Mapping[str, str],
        options: Options | None = None,
        not_in_quick: Collection[str] = (),
        folder: Path | None = None,
        console: Console | None = None,
    ) -> None:
        self.claim = claim
        self.options = options or Options()
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.notes: list[str] = []
        self.exit_code = 1
        self._attached: dict[str, Any] = {}
        self._folder = folder or ROOT / claim / "results"
        self._console = console or Console(width=None if sys.stdout.isatty() else 120)
        if unknown := sorted(set(not_in_quick) - set(bars)):
            raise InputError(f"not_in_quick names {unknown}, needs some of {sorted(bars)}")
        left_out = set(not_in_quick) if self.options.quick else set[str]()
        self._bars = {
            name: Bar(name=name, required=bound, skipped=name in left_out)
            for name, bound in bars.items()
        }
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()

    @property
    def state_folder(self) -> Path:
        """Folder of what an interrupted run has measured: `Options.state`, or the results'."""
        return self.options.state or self._folder

    def row(self, table: str, /, **columns: Any) -> None:
        """Add a row to `table`; tables and columns appear in the order of their first use.

        The row is also shown at once on standard error: some benchmarks take minutes.
        """
        self.tables.setdefault(table, []).append(columns)
        shown = ", ".join(f"{name} {_cell(value)}" for name, value in columns.items())
        elapsed = f"[{time.monotonic() - self._clock:4.0f} s]"
        print(f"{elapsed} {table}: {shown}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Add a remark, such as the effects that a figure excludes."""
        self.notes.append(text)

    def attach(self, name: str, content: Any) -> None:
        """Store `content` as JSON beside the result, under the result's name and this one."""
        self._attached[name] = content

    def bar(self, name: str, figure: float | None) -> None:
        """Give the figure of a declared bar; None or NaN: it could not be measured.

        Raises
        ------
        InputError : if the bar was not declared, or was already given.
        """
        if name not in self._bars:
            raise InputError(f"bar {name!r} is not declared, needs one of {sorted(self._bars)}")
        if self._bars[name].figure is not None:
            raise InputError(f"bar {name!r} was given twice")
        if figure is not None and math.isnan(figure):
            figure = None
        self._bars[name] = Bar(name=name, required=self._bars[name].required, figure=figure)

    def __enter__(self) -> Self:
        """Start; rows and bars may be added until the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Print tables, notes and every bar, and store the result; a failure is printed too."""
        if error is not None and kind is not None:
            traceback.print_exception(kind, error, trace)
            self.note(f"stopped early: {kind.__name__}: {error}")
        for title, rows in self.tables.items():
            self._console.print(_rich_table(title, rows))
        path = self._store()
        for note in self.notes:
            self._console.print(f"note: {note}", markup=False, soft_wrap=True)
        self._console.print(f"stored in {path}", markup=False, soft_wrap=True)
        for bar in self._bars.values():
            self._console.print(bar.line(), markup=False, highlight=False, soft_wrap=True)
        self.exit_code = 0 if error is None else 1
        return isinstance(error, Exception)

    def _store(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = self._started.strftime("%Y%m%dT%H%M%SZ")
        path = self._folder / f"{'kept-' if self.options.keep else ''}{stamp}.json"
        for name, content in self._attached.items():
            path.with_name(f"{path.stem}-{name}.json").write_text(json.dumps(content) + "\n")
        result = {
            "claim": self.claim,
            "quick": self.options.quick,
            "started": self._started.isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - self._clock, 1),
            "machine": machine(),
            "versions": versions(),
            "commit": _commit(),
            "tables": self.tables,
            "notes": self.notes,
            "bars": [
                {
                    "name": b.name,
                    "figure": b.figure,
                    "required": b.required,
                    "ok": b.ok,
                    **({"skipped": True} if b.skipped else {}),
                }
                for b in self._bars.values()
            ],
        }
        path.write_text(one_row_a_line(result))
        return path


def one_row_a_line(result: Mapping[str, Any]) -> str:
    """Return a result as JSON in which every row of a table, bar and note is one line."""

    def rows(items: Sequence[Any], indent: str) -> str:
        lines = [f"{indent} {json.dumps(item, default=str)}" for item in items]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]" if lines else "[]"

    parts: list[str] = []
    for name, value in result.items():
        if name == "tables":
            tables = [
                f"  {json.dumps(title)}: {rows(table, '  ')}" for title, table in value.items()
            ]
            text = "{\n" + ",\n".join(tables) + "\n }"
        elif isinstance(value, list):
            text = rows(value, " ")
        else:
            text = json.dumps(value, default=str)
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def machine() -> dict[str, Any]:
    """Return the machine's properties that affect speed: processor, cores, memory, kernel."""
    described = Path("/proc/cpuinfo")
    names = re.findall(
        r"model name\s*:\s*(.+)", described.read_text() if described.exists() else ""
    )
    memory = Path("/proc/meminfo")
    total = re.search(r"MemTotal:\s*(\d+) kB", memory.read_text() if memory.exists() else "")
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(names) or None,
        "memory_bytes": int(total[1]) * 1024 if total else None,
        "system": platform.system(),
        "kernel": platform.release(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages whose speed is compared."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _rich_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title, title_justify="left")
    for name in columns:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return _plain(value) if isinstance(value, float) else str(value)


def _plain(value: float) -> str:
    """Return `value` to five digits, without an exponent where it would be large."""
    text = f"{value:.5g}"
    return f"{value:.0f}" if "e+" in text else text
