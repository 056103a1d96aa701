"""Data that a job is trained on: files of examples, in batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace.embeddings.data.criteo import HASHES, CriteoFormat, DenseScale, read_criteo
from headrace.embeddings.data.examples import Examples, in_batches
from headrace.embeddings.errors import EmbeddingError, ExampleError
from headrace.facades import offered_by


@offered_by("headrace.embeddings")
@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoData:
    """Files in Criteo's format, one after the other, in batches.

    A batch is (dense features, [examples, 13]; ids, [examples, 26]; labels, [examples]).

    Attributes
    ----------
    batch : examples of one, of all trainers together; the last one of an epoch may be shorter.
    layout : of the files. Its `rows` are those of the model's tables.

    Raises
    ------
    EmbeddingError : there is no file, `batch` is below 1, or the lines have no label.
    """

    paths: tuple[str, ...]
    batch: int
    layout: CriteoFormat

    def __post_init__(self) -> None:
        if not self.paths:
            raise EmbeddingError("there is no file of examples, needs one or more")
        if self.batch < 1:
            raise EmbeddingError(f"a batch has {self.batch} examples, needs 1 or more")
        if not self.layout.labelled:
            raise EmbeddingError("files to train on need labels")

    @classmethod
    def of(
        cls, paths: Sequence[str | Path], *, batch: int, layout: CriteoFormat | None = None
    ) -> Self:
        """Return the data in files, whose paths are made absolute: processes differ in folders."""
        return cls(
            paths=tuple(str(Path(path).resolve()) for path in paths),
            batch=batch,
            layout=layout or CriteoFormat(),
        )

    @property
    def columns(self) -> int:
        """Columns of ids."""
        return HASHES

    def read(self) -> Iterator[Examples]:
        """Yield the batches of an epoch, in the order of the files.

        Raises
        ------
        ExampleError : a file cannot be read, or a line is no example.
        """
        return in_batches(read_criteo(self.paths, self.layout), self.batch)

    def first(self, examples: int) -> Examples:
        """Return the first examples.

        Raises
        ------
        ExampleError : as `read`; or there are none.
        """
        for part in read_criteo(self.paths, self.layout):
            return part[:examples]
        raise ExampleError(f"{self.paths[0]}: has no examples")

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        rows = self.layout.rows
        return {
            "format": "criteo",
            "paths": list(self.paths),
            "batch": self.batch,
            "scale": self.layout.scale.value,
            "rows": None if rows is None else list(rows),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the data that `to_fields` described.

        Raises
        ------
        EmbeddingError : the fields are not such data's.
        """
        try:
            rows = fields["rows"]
            layout = CriteoFormat(
                scale=DenseScale(fields["scale"]), rows=None if rows is None else tuple(rows)
            )
            return cls(paths=tuple(fields["paths"]), batch=fields["batch"], layout=layout)
        except (KeyError, TypeError, ValueError) as error:
            raise EmbeddingError(f"the description of data cannot be read: {error}") from error


def by_table(examples: Examples, columns: Sequence[Sequence[int]]) -> Examples:
    """Return examples whose ids are those of tables, each looked up with some columns.

    Parameters
    ----------
    examples : of one id for each example and column.
    columns : of every table. An example's ids of a table are in the order of its columns.
    """
    return Examples(
        labels=examples.labels,
        dense=examples.dense,
        ids=tuple(
            examples.ids[own[0]]
            if len(own) == 1
            else np.stack([examples.ids[column] for column in own], axis=1).reshape(-1)
            for own in columns
        ),
        lengths=tuple(
            None if len(own) == 1 else np.full(len(examples), len(own), np.int64) for own in columns
        ),
    )
