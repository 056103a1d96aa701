"""Marks of commits in a folder."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.embeddings import EmbeddingError, EmbeddingTable
from headrace.embeddings.run.commits import CommitFolder, Mark, data_files
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.row_logs import ServerFolder
from headrace.embeddings.tables import table_groups

TABLES = (EmbeddingTable(name="items", rows=9, dim=4),)


def description(path: Path) -> JobDescription:
    return JobDescription(
        tables=TABLES,
        columns=((0,),),
        groups=table_groups(TABLES),
        slots=(5,),
        seed=1,
        data={"format": "criteo", "paths": [str(path)], "batch": 4},
    )


def mark_of(job: JobDescription, commit: int) -> Mark:
    return Mark(
        commit=commit,
        epoch=1,
        epoch_began=7,
        batch=9,
        steps=9,
        trainers=1,
        servers=(ServerFolder(server=0, servers=1, groups=[[3]]),),
        job=job,
        files=data_files(job.data),
    )


@pytest.fixture
def job(tmp_path: Path) -> JobDescription:
    path = tmp_path / "data.tsv"
    path.write_text("0\n")
    return description(path)


def test_the_newest_mark_is_read_and_older_ones_and_their_states_go(
    job: JobDescription, tmp_path: Path
) -> None:
    folder = CommitFolder(tmp_path / "job")
    assert folder.newest() is None
    for commit in range(4):
        folder.state(commit, 0).write_bytes(b"state")
        folder.write(mark_of(job, commit))
    assert folder.newest() == mark_of(job, 3)
    assert sorted(path.name for path in (tmp_path / "job").rglob("*.*")) == [
        "2-0.pt",
        "2.json",
        "3-0.pt",
        "3.json",
    ]


def test_a_mark_is_that_of_one_job_and_its_data(job: JobDescription, tmp_path: Path) -> None:
    mark = mark_of(job, 3)
    mark.check(replace(job, slots=(6,)))
    with pytest.raises(EmbeddingError, match="differs in seed from that of commit 3"):
        mark.check(replace(job, slots=(6,), seed=2))
    (tmp_path / "data.tsv").write_text("1\n1\n")
    with pytest.raises(EmbeddingError, match=r"data\.tsv: has changed since commit 3"):
        mark.check(job)
    (tmp_path / "data.tsv").unlink()
    with pytest.raises(EmbeddingError, match=r"data\.tsv: No such file"):
        mark.check(job)


def test_a_damaged_mark_is_named(job: JobDescription, tmp_path: Path) -> None:
    folder = CommitFolder(tmp_path / "job")
    path = tmp_path / "job" / "marks" / "5.json"
    path.write_text("{")
    with pytest.raises(EmbeddingError, match=r"5\.json: is not JSON"):
        folder.newest()
    path.write_text('{"schema": 9}')
    with pytest.raises(EmbeddingError, match=r"5\.json: has schema 9, needs 1"):
        folder.newest()
    path.write_text('{"schema": 1, "commit": 2}')
    with pytest.raises(EmbeddingError, match=r"5\.json: is no mark of a commit"):
        folder.newest()
