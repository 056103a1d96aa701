"""One reader's part of a job's batches, where several readers parse them.

A batch of files is as many lines or rows as the data say, in the order of the files, so that a
reader skips those of the others by counting newlines, and Parquet's row groups that have none of
its own. Rejected lines are left out of their batch, which is smaller by them then. Other data are
read in whole, and the others' batches dropped.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.embeddings.data.avazu import AvazuFormat, parse_avazu
from headrace.embeddings.data.criteo import CriteoFormat, parse_criteo
from headrace.embeddings.data.examples import Examples, merged_examples
from headrace.embeddings.data.files import AvazuData, CriteoData, ExampleData, ParquetData
from headrace.embeddings.data.parquet import parquet_batches
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.data.text import text_blocks
from headrace.embeddings.errors import EmbeddingError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPart:
    """Batches of an epoch that one of several readers parses.

    Attributes
    ----------
    reader, readers : it parses batches reader, reader + readers, ...
    first : first batch that is parsed, from `reader` on.

    Raises
    ------
    EmbeddingError : there is no such part.
    """

    reader: int = 0
    readers: int = 1
    first: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.reader < self.readers:
            raise EmbeddingError(f"reader is {self.reader}, needs 0 to {self.readers - 1}")
        if self.first % self.readers != self.reader or self.first < 0:
            raise EmbeddingError(
                f"batch {self.first} is not one of reader {self.reader} of {self.readers}"
            )

    def has(self, batch: int) -> bool:
        """Return whether a batch is in the part."""
        return batch >= self.first and batch % self.readers == self.reader


def part_batches(data: ExampleData, part: ReaderPart) -> Iterator[Examples]:
    """Yield the batches of a part, in their order; one whose lines are all rejected is empty.

    The share of rejected lines is that of the part. Several readers write them to files whose names
    end in the reader's number, those of a batch before it is yielded. A part that begins after the
    reader's first batch goes on with an epoch: the lines that the file has stay, and the share is
    of the reader's batches before, too.

    Raises
    ------
    ExampleError : a file cannot be read, or more lines are rejected than may be.
    """
    if not isinstance(data, (CriteoData, AvazuData, ParquetData)):
        yield from islice(data.read(), part.first, None, part.readers)
        return
    path = data.rejects
    if path is not None and part.readers > 1:
        path = f"{path}.{part.reader}"
    keep = part.first > part.reader
    with closing(Rejects(path, data.most_rejected, keep=keep)) as rejects:
        # of batches before, whose rejected lines an earlier pass has checked
        rejects.count((part.first - part.reader) // part.readers * data.batch)
        for examples in _file_batches(data, part, rejects):
            rejects.flush()
            yield examples
        rejects.finish()


def _file_batches(
    data: CriteoData | AvazuData | ParquetData, part: ReaderPart, rejects: Rejects
) -> Iterator[Examples]:
    if isinstance(data, ParquetData):
        yield from parquet_batches(
            data.paths, data.layout, data.batch, part.has, rejects, drop_last=data.drop_last
        )
        return
    runs_of_batches = batch_lines(
        data.paths,
        data.batch,
        part,
        has_header=isinstance(data, AvazuData),
        drop_last=data.drop_last,
    )
    for runs in runs_of_batches:
        yield merged_examples([parsed_lines(run, data.layout, rejects) for run in runs])


class LineRun(NamedTuple):
    """Whole lines of a file, the number of those before them, and the file's header, if any."""

    path: Path
    line: int
    text: bytes
    header: bytes = b""


def parsed_lines(run: LineRun, layout: CriteoFormat | AvazuFormat, rejects: Rejects) -> Examples:
    """Return the examples of some lines.

    Raises
    ------
    ExampleError : more lines are rejected than may be.
    """
    source = str(run.path)
    if isinstance(layout, AvazuFormat):
        return parse_avazu(run.text, run.header, layout, source, run.line, rejects)[0]
    return parse_criteo(run.text, layout, source, run.line, rejects)[0]


def batch_lines(
    paths: Iterable[str],
    size: int,
    part: ReaderPart,
    *,
    has_header: bool = False,
    drop_last: bool = False,
) -> Iterator[list[LineRun]]:
    """Yield the lines of a part's batches, of `size` lines each.

    Parameters
    ----------
    has_header : whether the first line of every file is of no batch.
    drop_last : whether a last batch of fewer lines is left out.

    Raises
    ------
    ExampleError : a file cannot be read.
    """
    lines: list[LineRun] = []
    batch = filled = 0
    for path in map(Path, paths):
        line = 0
        header = b""
        for block in text_blocks(path):
            if has_header and line == 0:
                line, end = 1, block.index(b"\n") + 1
                header, block = block[:end], block[end:]
            for count, text in _cut(block, size - filled, size):
                if count and part.has(batch):
                    lines.append(LineRun(path, line, text, header))
                line += count
                filled += count
                if filled < size:
                    continue
                if lines:
                    yield lines
                lines, batch, filled = [], batch + 1, 0
    if lines and not drop_last:
        yield lines


def _cut(block: bytes, first: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Cut whole lines after `first` lines and then after every `size`; yield numbers and lines."""
    count = block.count(b"\n")
    if count <= first:
        yield count, block
        return
    stops = [*range(first, count, size), count]
    places = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    before, start = 0, 0
    for stop in stops:
        end = int(places[stop - 1]) + 1
        yield stop - before, block[start:end]
        before, start = stop, end
