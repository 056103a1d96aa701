"""Files of examples as a job's data."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.embeddings import CriteoData, CriteoFormat, EmbeddingError, ExampleError
from headrace.embeddings.data.files import by_table
from headrace.embeddings.data.generate import KAGGLE_ROWS

LINE = "\t".join(["1", *map(str, range(13)), *(f"{number:x}" for number in range(26))])


def data(path: Path, lines: int) -> CriteoData:
    path.write_text(f"{LINE}\n" * lines)
    return CriteoData.of([path], batch=4, layout=CriteoFormat(rows=KAGGLE_ROWS))


def test_data_is_read_in_batches_and_described(tmp_path: Path) -> None:
    clicks = data(tmp_path / "clicks.tsv", 10)
    assert [len(batch) for batch in clicks.read()] == [4, 4, 2]
    assert len(clicks.first(3)) == 3
    assert CriteoData.from_fields(json.loads(json.dumps(clicks.to_fields()))) == clicks


def test_data_without_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingError, match="no file of examples"):
        CriteoData.of([], batch=4)
    with pytest.raises(EmbeddingError, match="batch has 0 examples"):
        CriteoData.of(["clicks.tsv"], batch=0)
    with pytest.raises(EmbeddingError, match="need labels"):
        CriteoData.of(["clicks.tsv"], batch=4, layout=CriteoFormat(labelled=False))
    with pytest.raises(ExampleError, match="has no examples"):
        data(tmp_path / "clicks.tsv", 0).first(2)


def test_a_table_has_the_ids_of_its_columns_by_example(tmp_path: Path) -> None:
    examples = data(tmp_path / "clicks.tsv", 2).first(2)
    first, second = by_table(examples, [(3,), (5, 4)]).ids
    assert np.array_equal(first, examples.ids[3])
    assert second.tolist() == [examples.ids[column][0] for column in (5, 4)] * 2
    lengths = by_table(examples, [(3,), (5, 4)]).lengths
    assert lengths[0] is None
    assert lengths[1] is not None
    assert lengths[1].tolist() == [2, 2]
