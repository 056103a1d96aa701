"""Files of made clicks, in each of the formats."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, BinaryIO

import numpy as np

from headrace._native import FieldKind
from headrace.embeddings.data.avazu import HEADER, TABLES, field_kind
from headrace.embeddings.data.criteo import HASHES, INTEGERS
from headrace.embeddings.data.format_names import CriteoSet, FormatName
from headrace.embeddings.data.generate import (
    AVAZU_ROWS,
    KAGGLE_ROWS,
    TERABYTE_ROWS,
    Clicks,
    ClickSource,
    row_counts,
)
from headrace.embeddings.data.skew import Skew

_BEGIN = datetime(2014, 10, 21)
_DAYS = 10
"""Of Avazu's data set."""


def click_source(
    name: FormatName,
    skew: Skew,
    *,
    later: Skew | None = None,
    criteo_set: CriteoSet = "kaggle",
    most_rows: int | None = None,
    seed: int = 0,
) -> ClickSource:
    """Return a source of clicks for a format.

    Parameters
    ----------
    later : skew of the second half of the examples; None: the same.
    criteo_set : data set whose tables those of Criteo's format and of Parquet are.
    most_rows : of a table; None: as many as in the data set.
    """
    if name == "avazu":
        rows = row_counts(AVAZU_ROWS, most_rows)
        # No field of the data set is empty.
        return ClickSource(skew=skew, later=later, rows=rows, integers=0, missing=0.0, seed=seed)
    rows = row_counts(KAGGLE_ROWS if criteo_set == "kaggle" else TERABYTE_ROWS, most_rows)
    return ClickSource(skew=skew, later=later, rows=rows, seed=seed)


def write_clicks(
    file: BinaryIO, name: FormatName, source: ClickSource, examples: int
) -> Iterator[int]:
    """Write examples to a file; yields how many are written so far."""
    if name == "parquet":
        yield from _write_parquet(file, source, examples)
        return
    if name == "avazu":
        file.write((",".join(HEADER) + "\n").encode())
    written = 0
    for lines in _avazu_lines(source, examples) if name == "avazu" else source.lines(examples):
        file.write(lines)
        written += lines.count(b"\n")
        yield written


def _avazu_lines(source: ClickSource, examples: int) -> Iterator[bytes]:
    for clicks in source.clicks(examples):
        count = len(clicks.labels)
        numbers = range(clicks.first, clicks.first + count)
        columns: list[list[str]] = [
            [str(10**19 + number) for number in numbers],
            list(map(str, clicks.labels.astype(int).tolist())),
            [_hour(number / examples) for number in numbers],
        ]
        for name, ranks, hashes in zip(TABLES, clicks.ranks, clicks.hashes, strict=True):
            if field_kind(name) is FieldKind.HASH:
                columns.append([f"{hash_:08x}" for hash_ in hashes.tolist()])
            else:
                columns.append(list(map(str, ranks.tolist())))
        yield ("\n".join(map(",".join, zip(*columns, strict=True))) + "\n").encode()


def _hour(share: float) -> str:
    return (_BEGIN + timedelta(hours=int(share * _DAYS * 24))).strftime("%y%m%d%H")


def _write_parquet(file: BinaryIO, source: ClickSource, examples: int) -> Iterator[int]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    integers = {f"I{number}": pa.int64() for number in range(1, INTEGERS + 1)}
    ids = {f"C{number}": pa.int64() for number in range(1, HASHES + 1)}
    schema = pa.schema({"label": pa.int8(), **integers, **ids})
    written = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for clicks in source.clicks(examples):
            writer.write_table(pa.table(_arrow_columns(clicks, schema.names), schema=schema))
            written += len(clicks.labels)
            yield written


def _arrow_columns(clicks: Clicks, names: list[str]) -> Mapping[str, Any]:
    import pyarrow as pa

    columns = [*clicks.integers.T, *clicks.hashes]
    arrays = [pa.array(clicks.labels.astype(np.int8))]
    for column, missing in zip(columns, clicks.missing, strict=True):
        arrays.append(pa.array(np.ascontiguousarray(column), mask=missing))
    return dict(zip(names, arrays, strict=True))
