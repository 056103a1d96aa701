"""Made clicks in files of every format, read back."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from headrace.embeddings import AvazuFormat, CriteoFormat, DenseScale, ParquetFormat, Rejects
from headrace.embeddings.data import parquet_columns
from headrace.embeddings.data.avazu import TABLES, field_kind
from headrace.embeddings.data.criteo import MISSING
from headrace.embeddings.data.examples import Examples, merged_examples
from headrace.embeddings.data.files import FileLayout
from headrace.embeddings.data.format_names import FormatName
from headrace.embeddings.data.generate import Clicks
from headrace.embeddings.data.made_files import click_source, write_clicks
from headrace.embeddings.data.skew import Skew

COUNT = 500
ZIPF = Skew(kind="zipf", parameter=1.1)


def made(path: Path, name: FormatName, layout: FileLayout) -> tuple[Clicks, Examples]:
    """The examples, and those that a file has of the same source."""

    def source() -> Clicks:
        made_clicks = click_source(name, ZIPF, most_rows=300, seed=4)
        return next(made_clicks.clicks(COUNT))

    with path.open("wb") as file:
        written = write_clicks(file, name, click_source(name, ZIPF, most_rows=300, seed=4), COUNT)
        assert list(written) == [COUNT]
    return source(), merged_examples(list(layout.read([path], Rejects())))


@pytest.mark.parametrize("name", ["criteo", "parquet"])
def test_criteos_columns_are_those_of_the_source(tmp_path: Path, name: FormatName) -> None:
    layout = {
        "criteo": CriteoFormat(scale=DenseScale.NONE),
        "parquet": ParquetFormat(
            dense=tuple(f"I{number}" for number in range(1, 14)),
            ids=tuple(f"C{number}" for number in range(1, 27)),
        ),
    }[name]
    clicks, examples = made(tmp_path / "clicks", name, layout)
    assert examples.labels is not None
    assert (examples.labels == clicks.labels).all()
    integers = np.where(clicks.missing[:13].T, 0, clicks.integers)
    assert (examples.dense == integers.astype(np.float32)).all()
    assert clicks.missing.any()
    missing = MISSING if name == "criteo" else parquet_columns.MISSING
    for ids, hashes, empty in zip(examples.ids, clicks.hashes, clicks.missing[13:], strict=True):
        assert (ids == np.where(empty, missing, hashes)).all()


def test_avazus_columns_are_those_of_the_source(tmp_path: Path) -> None:
    clicks, examples = made(tmp_path / "clicks", "avazu", AvazuFormat())
    assert examples.labels is not None
    assert (examples.labels == clicks.labels).all()
    assert not clicks.missing.any()
    for name, ids, ranks, hashes in zip(
        TABLES, examples.ids, clicks.ranks, clicks.hashes, strict=True
    ):
        assert (ids == (hashes if field_kind(name).name == "HASH" else ranks)).all()
    hours = (examples.dense[:, 0] * 24).round()
    changes = [hour for hour, _ in itertools.groupby(hours)]
    assert changes == [hour % 24 for hour in range(240)]


def test_tables_are_those_of_the_data_sets() -> None:
    """Sums are those of BagPipe's Table 5.1, in millions."""
    totals = {
        "kaggle": sum(click_source("criteo", ZIPF).rows),
        "terabyte": sum(click_source("parquet", ZIPF, criteo_set="terabyte").rows),
        "avazu": sum(click_source("avazu", ZIPF).rows),
    }
    assert totals["kaggle"] / 1e6 == pytest.approx(33.76, abs=0.01)
    assert totals["terabyte"] / 1e6 == pytest.approx(882.77, abs=0.01)
    assert totals["avazu"] / 1e6 == pytest.approx(9.4, abs=0.1)
    source = click_source("criteo", ZIPF, criteo_set="terabyte", most_rows=100)
    assert max(source.rows) == 100
    assert max(hash_.max() for hash_ in next(source.clicks(9)).hashes) < 1 << 32
