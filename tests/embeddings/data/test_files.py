"""Files of examples as a job's data."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
import pytest

from headrace.embeddings import (
    CriteoData,
    CriteoFormat,
    EmbeddingError,
    ExampleError,
    Examples,
    Rejects,
)
from headrace.embeddings.data.files import by_table, data_from_fields
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
    with pytest.raises(ExampleError, match="^s3://clicks/day_0: is no path of this host"):
        CriteoData.of(["s3://clicks/day_0"], batch=4)
    with pytest.raises(ExampleError, match="is no UTF-8: rename the file, or its folder"):
        CriteoData.of([os.fsdecode(b"cl\xefcks.tsv")], batch=4)
    for batch in (0, 4.0):  # a quotient ended in a TypeError of the reader's
        with pytest.raises(
            EmbeddingError, match=f"batch has {batch} examples, needs 1 or more, an"
        ):
            CriteoData.of(["clicks.tsv"], batch=cast("int", batch))
    for path in ("/clicks.tsv", Path("/clicks.tsv")):  # the first letter of the text was a folder
        with pytest.raises(ExampleError, match=r"files are '/clicks.tsv', needs a list, as \['/cl"):
            CriteoData.of(cast("list[str]", path), batch=4)
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


def test_data_is_made_by_the_format_in_its_description(tmp_path: Path) -> None:
    clicks = data(tmp_path / "clicks.tsv", 3)
    fields = json.loads(json.dumps(clicks.to_fields()))
    assert data_from_fields(fields) == clicks
    with pytest.raises(EmbeddingError, match="format of data is 'arff', needs criteo"):
        data_from_fields({**fields, "format": "arff"})
    with pytest.raises(EmbeddingError, match="cannot be read: 'scale'"):
        data_from_fields({key: fields[key] for key in fields if key != "scale"})


def test_a_folder_stands_for_its_files_by_their_numbers(tmp_path: Path) -> None:
    names = ["day_0", "day_2", "day_10.gz", "day_23"]
    for name in reversed(names):
        (tmp_path / name).touch()
    for other in (".hidden", "_SUCCESS", "_metadata"):
        (tmp_path / other).touch()
    clicks = CriteoData.of([tmp_path], batch=4)
    assert [Path(path).name for path in clicks.paths] == names
    (tmp_path / "none").mkdir()
    with pytest.raises(ExampleError, match="none: this folder has no files of examples$"):
        CriteoData.of([tmp_path / "none"], batch=4)


def test_folders_in_a_folder_are_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their examples were left out in silence."""
    later = tmp_path / "later"
    later.mkdir()
    (tmp_path / "_temporary").mkdir()
    with pytest.raises(ExampleError, match=f"no files of examples: name those in it, as {later}$"):
        CriteoData.of([tmp_path], batch=4)
    (tmp_path / "day_0").touch()
    with pytest.warns(UserWarning, match=f"{later}: files of this folder are left out") as told:
        clicks = CriteoData.of([tmp_path], batch=4)
    assert [Path(path).name for path in clicks.paths] == ["day_0"]
    assert [warning.filename for warning in told] == [__file__]

    def refuse(_folder: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read any
    with pytest.raises(ExampleError, match=f"{tmp_path}: cannot be read: Permission denied"):
        CriteoData.of([tmp_path], batch=4)


def test_a_link_in_a_folder_without_its_file_is_named(tmp_path: Path) -> None:
    """Its examples were left out, as where a disk was not mounted."""
    data(tmp_path / "day_0", 2)
    (tmp_path / "day_1").symlink_to(tmp_path / "absent")
    with pytest.raises(ExampleError, match="absent: cannot be read: .*No such file"):
        list(CriteoData.of([tmp_path], batch=4).read())


def test_rejected_lines_go_where_the_data_says(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text(f"{LINE}\n{LINE}\nno\n{LINE}\n")
    rejects = tmp_path / "rejects"
    clicks = CriteoData.of([path], batch=2, most_rejected=0.5, rejects=rejects)
    assert [len(batch) for batch in clicks.read()] == [2, 1]
    assert rejects.read_text() == f"{path}\t3\thas 1 columns, needs 40\tno\n"
    assert data_from_fields(clicks.to_fields()) == clicks
    with pytest.raises(ExampleError, match="line 3"):
        list(clicks.read(Rejects()))


def test_rejected_lines_are_in_no_file_of_the_data(tmp_path: Path) -> None:
    """A job that began again after a loss had one file more, and differed from its commit."""
    path = data(tmp_path / "day_0", 2).paths[0]
    for paths, rejects in (([tmp_path], "rejects"), ([tmp_path], "day_0"), ([path], "day_0")):
        with pytest.raises(ExampleError, match=f"{rejects}: rejected lines would be among the fil"):
            CriteoData.of(paths, batch=4, rejects=tmp_path / rejects)
    for paths, rejects in (([tmp_path], "_rejects"), ([path], "rejects")):
        clicks = CriteoData.of(paths, batch=4, rejects=tmp_path / rejects)
        assert [len(batch) for batch in clicks.read()] == [2]


def test_bags_of_ids_have_a_table_alone_or_with_other_columns() -> None:
    examples = Examples(
        labels=None,
        dense=np.zeros((2, 1), np.float32),
        ids=(np.arange(2), np.arange(3)),
        lengths=(None, np.array([0, 3])),
    )
    tables = by_table(examples, [(1,), (0,)])
    assert tables.ids[0].tolist() == [0, 1, 2]
    assert tables.lengths[0] is examples.lengths[1]
    shared = by_table(examples, [(1, 0), (0, 1)])
    assert [ids.tolist() for ids in shared.ids] == [[0, 0, 1, 2, 1], [0, 1, 0, 1, 2]]
    assert [np.asarray(lengths).tolist() for lengths in shared.lengths] == [[1, 4]] * 2


def test_files_without_labels_are_data_too(tmp_path: Path) -> None:
    """They were refused: those for tests could not be evaluated, nor pairs be trained on."""
    path = tmp_path / "clicks.tsv"
    path.write_text(f"{LINE.partition(chr(9))[2]}\n" * 3)
    clicks = CriteoData.of([path], batch=2, layout=CriteoFormat(labelled=False))
    assert [(len(batch), batch.labels) for batch in clicks.read()] == [(2, None), (1, None)]
    assert data_from_fields(json.loads(json.dumps(clicks.to_fields()))) == clicks


def test_a_shorter_last_batch_can_be_left_out(tmp_path: Path) -> None:
    """A share of one example ended training with an error of BatchNorm."""
    clicks = replace(data(tmp_path / "clicks.tsv", 9), drop_last=True)
    assert [len(batch) for batch in clicks.read()] == [4, 4]
    assert data_from_fields(json.loads(json.dumps(clicks.to_fields()))) == clicks
    whole = replace(data(tmp_path / "clicks.tsv", 8), drop_last=True)
    assert [len(batch) for batch in whole.read()] == [4, 4]
    # else jobs would not begin from commits of versions without it
    assert "drop_last" not in data(tmp_path / "clicks.tsv", 8).to_fields()
