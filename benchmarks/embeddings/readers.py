"""Files of each format, read into batches of ids: examples a second of one processor."""

import gzip
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from benchmarks.harness import Report
from headrace.embeddings import (
    AvazuData,
    AvazuFormat,
    CriteoData,
    CriteoFormat,
    ExampleData,
    ParquetData,
    ParquetFormat,
)
from headrace.embeddings.data.format_names import FormatName
from headrace.embeddings.data.generate import AVAZU_ROWS, KAGGLE_ROWS, ClickSource
from headrace.embeddings.data.made_files import click_source, write_clicks
from headrace.embeddings.data.skew import Skew

BATCH = 16_384
SKEW = Skew(kind="zipf", parameter=1.05)
INTEGERS = tuple(f"I{number}" for number in range(1, 14))
IDS = tuple(f"C{number}" for number in range(1, 27))


class Files(NamedTuple):
    """Files of one form, and the number of clicks in them."""

    form: str
    data: ExampleData
    path: Path
    clicks: int


def bars() -> dict[str, str]:
    """Return no bars: the figures are those of the reader's machine."""
    return {}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Read the same clicks from files of every form, in turns."""
    del quick
    examples, rounds = 400_000, 7
    with tempfile.TemporaryDirectory() as folder:
        forms = list(_files(Path(folder), examples))
        seconds: dict[str, list[float]] = {files.form: [] for files in forms}
        for _ in range(rounds + 1):
            for files in forms:
                seconds[files.form].append(_read_s(files, examples))
        for files in forms:
            median = statistics.median(seconds[files.form][1:])
            report.row(
                "reader-examples-per-cpu-s",
                files=files.form,
                examples_per_cpu_s=examples / median,
                bytes_per_example=files.path.stat().st_size / examples,
                mb_per_cpu_s=files.path.stat().st_size / median / 1e6,
            )


def _read_s(files: Files, examples: int) -> float:
    """Return the processor seconds of all batches; ArithmeticError unless all examples are read."""
    read, clicks = 0, 0.0
    began = time.process_time()
    for batch in files.data.read():
        read += len(batch)
        clicks += 0.0 if batch.labels is None else float(batch.labels.sum())
    elapsed = time.process_time() - began
    if (read, clicks) != (examples, files.clicks):
        raise ArithmeticError(f"{files.form}: {read} examples with {clicks} clicks are read")
    return elapsed


def _files(folder: Path, examples: int) -> Iterator[Files]:
    """Write the files, and yield them in every form."""
    criteo, clicks = _written(folder / "criteo.tsv", "criteo", examples)
    yield Files("criteo", CriteoData.of([criteo], batch=BATCH), criteo, clicks)
    layout = CriteoFormat(rows=KAGGLE_ROWS)
    data = CriteoData.of([criteo], batch=BATCH, layout=layout)
    yield Files("criteo, ids modulo rows", data, criteo, clicks)
    packed = folder / "criteo.gz"
    with criteo.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    yield Files("criteo, gzip", CriteoData.of([packed], batch=BATCH), packed, clicks)

    avazu, clicks = _written(folder / "avazu.csv", "avazu", examples)
    yield Files("avazu", AvazuData.of([avazu], batch=BATCH), avazu, clicks)
    data = AvazuData.of([avazu], batch=BATCH, layout=AvazuFormat(rows=AVAZU_ROWS))
    yield Files("avazu, ids modulo rows", data, avazu, clicks)

    columns, clicks = _written(folder / "clicks.parquet", "parquet", examples)
    layout = ParquetFormat(dense=INTEGERS, ids=IDS)
    data = ParquetData.of([columns], batch=BATCH, layout=layout)
    yield Files("parquet", data, columns, clicks)
    for form, table in _other_columns(parquet.read_table(columns)).items():
        path = folder / f"{form}.parquet"
        parquet.write_table(table, path, row_group_size=1 << 16)
        data = ParquetData.of([path], batch=BATCH, layout=layout)
        yield Files(f"parquet, {form}", data, path, clicks)


def _other_columns(table: pa.Table) -> dict[str, pa.Table]:
    """Return the same clicks with ids that are texts, and with bags of three ids each."""
    texts, bags = table, table
    for place, name in enumerate(table.column_names):
        if name not in IDS:
            continue
        numbers = table.column(name).fill_null(0).to_numpy()
        words = pa.array([f"{number:08x}" for number in numbers.tolist()])
        texts = texts.set_column(place, name, words)
        ids = np.stack([numbers, numbers + 1, numbers + 2], axis=1).reshape(-1)
        ends = np.arange(0, len(ids) + 1, 3, dtype=np.int32)
        bags = bags.set_column(place, name, pa.ListArray.from_arrays(ends, ids))
    return {"texts": texts, "bags of 3 ids": bags}


def _written(path: Path, name: FormatName, examples: int) -> tuple[Path, int]:
    """Write clicks to a file; return it, and the number of clicks."""

    def source() -> ClickSource:
        return click_source(name, SKEW, seed=1)

    with path.open("wb") as file:
        for _ in write_clicks(file, name, source(), examples):
            pass
    return path, sum(int(part.labels.sum()) for part in source().clicks(examples))
