"""Data that a job is trained on: files of examples, in batches."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.data.avazu import AvazuFormat
from headrace.embeddings.data.criteo import CriteoFormat
from headrace.embeddings.data.examples import Examples, in_batches, is_count
from headrace.embeddings.data.parquet import ParquetFormat
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.errors import EmbeddingError, ExampleError
from headrace.facades import offered_by, public_value


@offered_by("headrace.embeddings")
class ExampleData(Protocol):
    """Data that a job is trained on.

    A batch is some examples of all trainers together; the last one of an epoch may be shorter.
    """

    @property
    def batch(self) -> int:
        """Examples of a batch."""
        ...

    @property
    def columns(self) -> int:
        """Columns of ids."""
        ...

    def read(self, rejects: Rejects | None = None) -> Iterator[Examples]:
        """Yield the batches of an epoch, in their order."""
        ...

    def first(self, examples: int) -> Examples:
        """Return the first examples, `examples` at most."""
        ...

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it; `data_from_fields` is the inverse."""
        ...


def check_data(data: object) -> None:
    """Raise EmbeddingError for data that need another form."""
    if all(hasattr(data, name) for name in ("batch", "columns", "read", "first", "to_fields")):
        return
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Sequence)):
        remedy = "pass LoaderData(loader, batch=..., columns=...) with it"
    else:
        remedy = "needs CriteoData, AvazuData or ParquetData of files, or LoaderData of a loader"
    raise EmbeddingError(f"data is a {type(data).__name__}: {remedy}")


class FileLayout(Protocol):
    """Layout of files of one format."""

    @property
    def tables(self) -> int:
        """Columns of ids."""
        ...

    def read(self, paths: Iterable[str | Path], rejects: Rejects) -> Iterator[Examples]:
        """Yield the examples of files, some thousands at once."""
        ...

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        ...

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the layout that `to_fields` described; KeyError, TypeError or ValueError."""
        ...


L = TypeVar("L", bound=FileLayout)

_LEFT_OUT = (".", "_")
"""Begin the names of a folder's files that are no examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleFiles(Generic[L]):
    """Files of one format, one after the other, in batches.

    Attributes
    ----------
    paths : of the files.
    batch : examples of one, of all trainers together; the last one of an epoch may be shorter.
    layout : of the files.
    most_rejected : share of the lines that may be rejected because they are no examples.
    rejects : file that the rejected lines are written to.
    drop_last : whether a last batch with fewer lines is left out, as by torch's DataLoader.

    Raises
    ------
    EmbeddingError : there is no file, or `batch` is no int or below 1.
    """

    FORMAT: ClassVar[str]
    LAYOUT: ClassVar[type[Any]]

    paths: tuple[str, ...]
    batch: int
    layout: L
    most_rejected: float = 0.0
    rejects: str | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not self.paths:
            raise EmbeddingError("there is no file of examples, needs one or more")
        if not is_count(self.batch):
            raise EmbeddingError(f"a batch has {self.batch!r} examples, needs 1 or more, an int")

    @classmethod
    def of(
        cls,
        paths: Sequence[str | Path],
        *,
        batch: int,
        layout: L | None = None,
        most_rejected: float = 0.0,
        rejects: str | Path | None = None,
        drop_last: bool = False,
    ) -> Self:
        """Return the data in files, whose paths are made absolute: processes differ in folders.

        A folder stands for its files, by the numbers in their names: day_2 is before day_10.

        Raises
        ------
        ExampleError : see `files_of`; or `rejects` would be one of the files in a next run.
        """
        files = tuple(str(_in_utf8(path.resolve())) for path in files_of(paths))
        if rejects is not None:
            _check_rejects(Path(rejects).resolve(), paths, files)
        return cls(
            paths=files,
            batch=batch,
            layout=cls.LAYOUT() if layout is None else layout,
            most_rejected=most_rejected,
            rejects=None if rejects is None else str(Path(rejects).resolve()),
            drop_last=drop_last,
        )

    @property
    def columns(self) -> int:
        """Columns of ids."""
        return self.layout.tables

    def read(self, rejects: Rejects | None = None) -> Iterator[Examples]:
        """Yield the batches of an epoch, in the order of the files.

        Parameters
        ----------
        rejects : takes lines that are no examples, in place of what the attributes say.

        Raises
        ------
        ExampleError : a file cannot be read, or more lines are rejected than may be.
        """
        if rejects is not None:
            parts = self.layout.read(self.paths, rejects)
            yield from in_batches(parts, self.batch, drop_last=self.drop_last)
            return
        with closing(Rejects(self.rejects, self.most_rejected)) as rejected:
            yield from self.read(rejected)

    def first(self, examples: int) -> Examples:
        """Return the first examples.

        Raises
        ------
        ExampleError : as `read`; or there are none.
        """
        for part in self.layout.read(self.paths, Rejects(most_share=self.most_rejected)):
            return part[:examples]
        raise ExampleError(f"{self.paths[0]}: has no examples")

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return {
            "format": self.FORMAT,
            "paths": list(self.paths),
            "batch": self.batch,
            "most_rejected": self.most_rejected,
            "rejects": self.rejects,
            **({"drop_last": True} if self.drop_last else {}),  # as in earlier commits
            **self.layout.to_fields(),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the data that `to_fields` described.

        Raises
        ------
        EmbeddingError : the fields are not such data's.
        """
        try:
            return cls(
                paths=tuple(fields["paths"]),
                batch=fields["batch"],
                layout=cls.LAYOUT.from_fields(fields),
                most_rejected=fields["most_rejected"],
                rejects=fields["rejects"],
                drop_last=fields.get("drop_last", False),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EmbeddingError(f"the description of data cannot be read: {error}") from error


@public_value("headrace.embeddings")
class CriteoData(ExampleFiles[CriteoFormat]):
    """Files in Criteo's format: Kaggle's data set, and the days of the Terabyte one.

    A batch is (dense features, [examples, 13]; ids, [examples, 26]; labels, [examples]), without
    labels where the layout has none. The layout's `rows` are those of the model's tables.
    """

    FORMAT = "criteo"
    LAYOUT = CriteoFormat


@public_value("headrace.embeddings")
class AvazuData(ExampleFiles[AvazuFormat]):
    """Files in Avazu's format.

    A batch is (hour of the day, [examples, 1]; ids, [examples, 21]; labels, [examples]).
    """

    FORMAT = "avazu"
    LAYOUT = AvazuFormat


@public_value("headrace.embeddings")
class ParquetData(ExampleFiles[ParquetFormat]):
    """Parquet files, with the columns that the layout names."""

    FORMAT = "parquet"
    LAYOUT = ParquetFormat


FORMATS: Mapping[str, type[ExampleFiles[Any]]] = {
    data.FORMAT: data for data in (CriteoData, AvazuData, ParquetData)
}
"""Data in files, by the name of their format."""


def data_from_fields(fields: Mapping[str, Any]) -> ExampleData:
    """Return the data that `to_fields` described, by its `format`.

    Raises
    ------
    EmbeddingError : the fields are no data's.
    """
    data = FORMATS.get(str(fields.get("format")))
    if data is None:
        raise EmbeddingError(
            f"the format of data is {fields.get('format')!r}, needs {', '.join(FORMATS)}: a script "
            "reads data of its own with 'headrace embeddings run --script-reads'"
        )
    return data.from_fields(fields)


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Return files, and those of folders by the numbers in their names.

    Hidden ones are left out, those that writers of Parquet add, as `_SUCCESS`, and, with a warning,
    folders in a folder.

    Raises
    ------
    ExampleError : there is one path in place of a list; a folder has no files, or cannot be read; a
        path is an address, or no UTF-8.
    """
    if _is_path(paths):  # the letters of a text are paths, too
        raise ExampleError(f"files are '{paths}', needs a list, as ['{paths}']")
    files: list[Path] = []
    for named in paths:
        path = Path(named)
        if re.match(r"\w+://", str(named)):
            raise ExampleError(f"{named}: is no path of this host: copy the file here")
        if not path.is_dir():
            files.append(path)
            continue
        files.extend(_files_in(path))
    return [_in_utf8(path) for path in files]


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder; warn of folders in it, whose files are not among them."""
    try:
        listed = [path for path in folder.iterdir() if not path.name.startswith(_LEFT_OUT)]
    except OSError as error:
        raise ExampleError(f"{folder}: cannot be read: {error.strerror}") from error
    listed.sort(key=lambda path: _by_numbers(path.name))
    inner = next((path for path in listed if path.is_dir()), None)
    # a link without its file, too: reading it is an error
    links = {path for path in listed if path.is_symlink() and not path.is_dir()}
    files = [path for path in listed if path.is_file() or path in links]
    if not files:
        folders = "" if inner is None else f": name those in it, as {inner}"
        raise ExampleError(f"{folder}: this folder has no files of examples{folders}")
    if inner is not None:
        warnings.warn(
            f"{inner}: files of this folder are left out, as it is in {folder}: name it, too, if "
            "they are examples",
            stacklevel=4,
        )
    return files


def _check_rejects(rejects: Path, paths: Iterable[str | Path], files: Iterable[str]) -> None:
    """Raise ExampleError for a file of rejected lines that is one of examples, or beside them.

    In a folder of these, a job that begins again would read it, and differ from its commits.
    """
    folders = [Path(path).resolve() for path in paths if Path(path).is_dir()]
    beside = rejects.parent in folders and not rejects.name.startswith(_LEFT_OUT)
    if beside or str(rejects) in files:
        raise ExampleError(
            f"{rejects}: rejected lines would be among the files of examples: name a file "
            "elsewhere, or by a name that begins with _"
        )


def _is_path(paths: object) -> bool:
    return isinstance(paths, str | Path)


def _in_utf8(path: Path) -> Path:
    """Return a path; ExampleError if it is no UTF-8, as PyArrow, which opens it, needs it."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ExampleError(f"{path}: is no UTF-8: rename the file, or its folder") from error
    return path


def _by_numbers(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def by_table(examples: Examples, columns: Sequence[Sequence[int]]) -> Examples:
    """Return examples whose ids are those of tables, each looked up with some columns.

    Parameters
    ----------
    examples : of one id for each example and column, or of bags of ids.
    columns : of every table. An example's ids of a table are in the order of its columns.
    """
    tables = [
        _joined(
            [examples.ids[column] for column in own], [examples.lengths[column] for column in own]
        )
        for own in columns
    ]
    return Examples(
        labels=examples.labels,
        dense=examples.dense,
        ids=tuple(ids for ids, _ in tables),
        lengths=tuple(lengths for _, lengths in tables),
    )


def _joined(
    ids: Sequence[NDArray[np.int64]], lengths: Sequence[NDArray[np.int64] | None]
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return ids of columns as a table's, with the number of each example's."""
    if len(ids) == 1:
        return ids[0], lengths[0]
    counts = [
        np.ones(len(column), np.int64) if own is None else own
        for column, own in zip(ids, lengths, strict=True)
    ]
    in_all = np.sum(counts, axis=0)
    if all(own is None for own in lengths):
        return np.stack(ids, axis=1).reshape(-1), in_all
    joined = np.empty(int(in_all.sum()), np.int64)
    begins = np.cumsum(in_all) - in_all  # of each example's ids of a column
    for column, own in zip(ids, counts, strict=True):
        places = np.repeat(begins - (np.cumsum(own) - own), own) + np.arange(len(column))
        joined[places] = column
        begins = begins + own
    return joined, in_all


def shared_lengths(
    examples: Examples, columns: Sequence[Sequence[int]]
) -> dict[int, NDArray[np.int64]]:
    """Return the lengths of columns of bags that feed a table with others: [examples], by column.

    Parameters
    ----------
    columns : of every table.
    """
    return {
        column: lengths
        for own in columns
        if len(own) > 1
        for column in own
        if (lengths := examples.lengths[column]) is not None
    }
