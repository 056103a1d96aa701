"""Changes from one artifact to another of its kind, in the figures that the kind shows."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.kinds import artifact_kinds, load_artifact
from headrace.report.page import Page
from headrace.report.provenance import labelled_rows
from headrace.report.results import stored_result

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

UNCHANGED = "Nothing that is shown of them differs."
COLUMNS = ("name", "before", "after", "change")

_UNITS = {
    **{unit: ("B", 1024.0**power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{unit: ("B", 1000.0**power) for power, unit in enumerate(("KB", "MB", "GB", "TB"), 1)},
    "us": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "Mbit/s": ("bit/s", 1e6),
    "Gbit/s": ("bit/s", 1e9),
    "MB/s": ("B/s", 1e6),
    "GB/s": ("B/s", 1e9),
}
"""Units of shown figures: the unit that they are compared in, and its factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactChange:
    """A figure or a table that differs between two artifacts.

    Attributes
    ----------
    name : of the figure, or the title of the table.
    before, after : the texts that the artifacts show; empty where one has no such figure.
    change : the ratio of the figures, or the numbers of rows that went and came; empty for texts.
    """

    name: str
    before: str
    after: str
    change: str

    def cells(self) -> tuple[str, str, str, str]:
        """Return it as a row of `COLUMNS`."""
        return self.name, self.before, self.after, self.change


def changes_between(before: Path, after: Path) -> list[ArtifactChange]:
    """Return the changes between two artifacts of one kind; none if their content is equal.

    Raises
    ------
    ArtifactError : a file is no artifact, or they are of different kinds.
    """
    first, second = _artifact(before), _artifact(after)
    if first.kind != second.kind:
        raise ArtifactError(
            f"{after}: field 'kind' is '{second.kind}', needs '{first.kind}' as in {before}: "
            "changes are of two artifacts of one kind"
        )
    facts, tables = _contents(first, str(before))
    facts_after, tables_after = _contents(second, str(after))
    return [
        *_fact_changes(facts, facts_after),
        *_table_changes(tables, tables_after),
        *_fact_changes(_provenance(first), _provenance(second)),
    ]


def _provenance(artifact: Artifact) -> dict[str, str]:
    rows = labelled_rows(artifact.provenance, most=2000)
    return {f"provenance: {label}": text for label, text in rows}


def changes_page(before: Path, after: Path) -> Page:
    """Return a page with the changes between two artifacts of one kind; see `changes_between`."""
    changes = changes_between(before, after)
    kind = _artifact(before).kind
    page = Page(f"Changes of a {kind}", f"from {before.name} to {after.name}")
    if changes:
        page.table(COLUMNS, [change.cells() for change in changes])
    else:
        page.note(UNCHANGED)
    return page


def _artifact(path: Path) -> Artifact:
    if stored_result(path) is not None:
        raise ArtifactError(
            f"{path}: is a benchmark's result, needs an artifact: changes are of two artifacts"
        )
    return load_artifact(path)


def _contents(artifact: Artifact, source: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Return the facts that an artifact's kind shows, by name, and the rows of its tables."""
    kind = artifact_kinds().get(artifact.kind)
    if kind is None or kind.show is None:
        return {name: str(value) for name, value in artifact.head.items()}, {}
    facts: dict[str, str] = {}
    tables: dict[str, list[Any]] = {}
    for shown in _shown_tables(kind.show(kind.load(artifact, source), True)):
        rows = list(
            zip(*([str(cell) for cell in column.cells] for column in shown.columns), strict=True)
        )
        if shown.show_header or len(shown.columns) != 2:
            tables.setdefault(str(shown.title), []).extend(rows)
        else:
            for name, text in rows:
                key = name if name not in facts else f"{shown.title}: {name}"
                facts[key] = text
    return facts, tables


def _shown_tables(shown: "Iterable[RenderableType]") -> "Iterator[Table]":
    from rich.table import Table

    for table in shown:
        if isinstance(table, Table):
            yield table


def _fact_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ArtifactChange]:
    for name in dict.fromkeys((*before, *after)):
        texts = before.get(name, ""), after.get(name, "")
        if texts[0] != texts[1]:
            yield ArtifactChange(
                name=name, before=texts[0], after=texts[1], change=relative_change(*texts)
            )


def _table_changes(
    before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]
) -> Iterator[ArtifactChange]:
    for title in dict.fromkeys((*before, *after)):
        rows = Counter(before.get(title, ())), Counter(after.get(title, ()))
        went, came = (rows[0] - rows[1]).total(), (rows[1] - rows[0]).total()
        if went or came:
            yield ArtifactChange(
                name=title,
                before=f"{rows[0].total()} rows",
                after=f"{rows[1].total()} rows",
                change=f"{went} rows went, {came} came",
            )


def relative_change(before: str, after: str) -> str:
    """Return the change of the figure that two texts begin with, in percent; empty without one."""
    first, second = _figure(before), _figure(after)
    if first is None or second is None or first[1] != second[1] or first[0] == 0:
        return ""
    if first[1] == "%":
        return f"{second[0] - first[0]:+z.1f} points"
    return f"{second[0] / first[0] - 1:+z.1%}"


def _figure(text: str) -> tuple[float, str] | None:
    """Return the figure that a text begins with, and the unit that it is in."""
    begins = re.match(r"([+-]?\d[\d,]*(?:\.\d+)?)(%|(?: ([A-Za-z]+(?:/s)?)\b)?)(?![\w.])", text)
    if begins is None:
        return None
    value = float(begins[1].replace(",", ""))
    if begins[2] == "%":
        return value, "%"
    unit, factor = _UNITS.get(begins[3] or "", (begins[3] or "", 1.0))
    return value * factor, unit
