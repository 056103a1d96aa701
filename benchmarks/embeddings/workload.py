"""Workloads of timed jobs: made clicks, their batches, and the numbers of a row."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.embeddings.drawn import BATCH, SKEW
from benchmarks.harness import ROOT
from headrace.embeddings import AvazuData, CriteoData, EmbeddingTable, ExampleData, InitialValues
from headrace.embeddings.data.format_names import CriteoSet
from headrace.embeddings.data.generate import AVAZU_ROWS, KAGGLE_ROWS, TERABYTE_ROWS
from headrace.embeddings.data.made_files import click_source, write_clicks
from headrace.embeddings.data.skew import parse_skew
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.tables import table_groups

ROWS: Mapping[str, tuple[int, ...]] = {
    "kaggle": KAGGLE_ROWS,
    "avazu": AVAZU_ROWS,
    "terabyte": TERABYTE_ROWS,
}
"""Of every table, by data set."""

CLICKS = 130 * BATCH
"""Of a file: more than a window's, so that rows of the next pass over it are none of the window.
Where the skew changes, as many come before the change as behind it."""

WINDOW = 100 * BATCH
"""Examples that a decision looks at, whatever their batches."""

_SLOTS = 1_500_000
"""More rows than a window of any of these workloads keeps."""

_PASSES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Clicks of a data set's tables, and the tables that their columns look up.

    Attributes
    ----------
    clicks_of : data set.
    skew : of accesses.
    later_skew : of the second half of the clicks; None: the same.
    batch : examples of all trainers together.
    dims : of the tables that each column looks up.
    slots : rows that each trainer's cache has room for, of every group of tables.
    """

    clicks_of: str = "kaggle"
    skew: str = str(SKEW)
    batch: int = BATCH
    dims: tuple[int, ...] = (48,)
    later_skew: str | None = None
    slots: int = _SLOTS

    def __str__(self) -> str:
        """Return what it has otherwise than others, and its dimension."""
        numbers = f"dimension {' and '.join(map(str, self.dims))}"
        others = [
            getattr(self, name)
            for name in ("clicks_of", "skew")
            if getattr(self, name) != getattr(KAGGLE, name)
        ]
        batch = [f"batch {self.batch}"] if self.batch != BATCH else []
        later = [f"then {self.later_skew}"] if self.later_skew is not None else []
        return ", ".join([numbers, *others, *later, *batch])

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the data set's columns."""
        return ROWS[self.clicks_of]

    @property
    def window(self) -> int:
        """Lookahead in batches: of as many examples, whatever their batches."""
        return WINDOW // self.batch

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the workload that `to_fields` described."""
        workload = cls(**fields)
        return replace(workload, dims=tuple(workload.dims))

    @property
    def path(self) -> Path:
        """File of the clicks, whether it exists or not."""
        later = "" if self.later_skew is None else f"-then-{self.later_skew}"
        skew = f"{self.skew}{later}".replace(":", "-")
        return ROOT.parent / "build" / f"clicks-{self.clicks_of}-{skew}-{self._clicks}.txt"

    @property
    def _clicks(self) -> int:
        return CLICKS if self.later_skew is None else 2 * CLICKS

    def write_clicks(self) -> None:
        """Write the file of the clicks, unless it exists."""
        if self.path.exists():
            return
        skew, unfinished = parse_skew(self.skew), self.path.with_suffix(".part")
        later = None if self.later_skew is None else parse_skew(self.later_skew)
        form = "avazu" if self.clicks_of == "avazu" else "criteo"
        criteo_set: CriteoSet = "terabyte" if self.clicks_of == "terabyte" else "kaggle"
        with unfinished.open("wb") as file:
            source = click_source(form, skew, later=later, criteo_set=criteo_set)
            for _ in write_clicks(file, form, source, self._clicks):
                pass
        os.replace(unfinished, self.path)

    def data(self) -> ExampleData:
        """Return the clicks again and again; the file has to exist."""
        data = AvazuData if self.clicks_of == "avazu" else CriteoData
        return data.of([self.path] * _PASSES, batch=self.batch)

    def description(self) -> JobDescription:
        """Return the job: tables of hashed rows updated by SGD; the file has to exist."""
        columns = [(number, dim) for dim in self.dims for number in range(len(self.rows))]
        tables = tuple(
            EmbeddingTable(
                name=f"table{number} of {dim}", rows=0, dim=dim, initial=InitialValues(scale=0.01)
            )
            for number, dim in columns
        )
        groups = table_groups(tables)
        return JobDescription(
            tables=tables,
            columns=tuple((number,) for number, _ in columns),
            groups=groups,
            slots=(self.slots,) * len(groups),
            seed=0,
            data=self.data().to_fields(),
        )


KAGGLE = Workload()
"""The default of timed jobs."""
