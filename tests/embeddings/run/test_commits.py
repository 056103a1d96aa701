"""Marks of commits in a folder."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.embeddings import EmbeddingError, EmbeddingTable
from headrace.embeddings.run.commits import CommitFolder, Mark, data_files
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.servers.row_logs import ServerFolder
from headrace.embeddings.tables import table_groups
from headrace.errors import CommunicationError

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


def mark_of(job: JobDescription, start: int, commit: int) -> Mark:
    return Mark(
        start=start,
        commit=commit,
        epoch=1,
        epoch_began=7,
        batch=9,
        steps=9,
        trainers=1,
        servers=(ServerFolder(start=start, server=0, servers=1, groups=[[3]]),),
        job=job,
        files=data_files(job.data),
    )


@pytest.fixture
def job(tmp_path: Path) -> JobDescription:
    path = tmp_path / "data.tsv"
    path.write_text("0\n")
    return description(path)


def marked(folder: CommitFolder, job: JobDescription, start: int, commit: int) -> Mark:
    """Return a mark that was written, with the state of a trainer before it."""
    folder.state(start, commit, 0).write_bytes(b"state")
    mark = mark_of(job, start, commit)
    folder.write(mark)
    return mark


def names(folder: CommitFolder) -> list[str]:
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*.*"))


def test_the_newest_mark_is_read_and_older_ones_and_their_states_go(
    job: JobDescription, tmp_path: Path
) -> None:
    folder = CommitFolder(tmp_path / "job")
    assert folder.newest() is None
    start = folder.begin()
    marks = [marked(folder, job, start, commit) for commit in range(4)]
    assert folder.newest() == marks[-1]
    assert names(folder) == [
        f"start-1/{name}"
        for name in ("marks/2.json", "marks/3.json", "trainers/2-0.pt", "trainers/3-0.pt")
    ]


def test_a_start_that_was_taken_over_marks_nothing(job: JobDescription, tmp_path: Path) -> None:
    folder = CommitFolder(tmp_path / "job")
    mark = marked(folder, job, folder.begin(), 0)
    later = folder.begin()
    assert later == 2
    assert folder.newest() == mark
    with pytest.raises(CommunicationError, match="start 2 of the job has taken over from start 1"):
        marked(folder, job, 1, 1)
    assert folder.newest() == mark
    newer = marked(folder, job, later, 1)
    assert folder.newest() == newer
    assert names(folder) == ["start-2/marks/1.json", "start-2/trainers/1-0.pt"]
    with pytest.raises(FileNotFoundError):
        folder.state(1, 2, 0).write_bytes(b"state")


def test_a_mark_is_that_of_one_job_and_its_data(job: JobDescription, tmp_path: Path) -> None:
    mark = mark_of(job, 1, 3)
    mark.check(replace(job, slots=(6,)))
    with pytest.raises(EmbeddingError, match="differs in seed from that of commit 3"):
        mark.check(replace(job, slots=(6,), seed=2))
    (tmp_path / "data.tsv").write_text("1\n1\n")
    with pytest.raises(EmbeddingError, match=r"data\.tsv: has changed since commit 3"):
        mark.check(job)
    (tmp_path / "data.tsv").unlink()
    with pytest.raises(EmbeddingError, match=r"data\.tsv: No such file"):
        mark.check(job)


def test_a_job_may_reject_other_lines_than_its_commit(job: JobDescription) -> None:
    """A line that is no example ended a job for good: what its error advises was another job."""
    data = {**job.data, "most_rejected": 0.0, "rejects": None}
    mark = mark_of(replace(job, data=data), 1, 3)
    mark.check(replace(job, data={**data, "most_rejected": 0.01, "rejects": "rejects.tsv"}))
    with pytest.raises(EmbeddingError, match="differs in data from that of commit 3"):
        mark.check(replace(job, data={**data, "most_rejected": 0.01, "batch": 8}))


def test_the_names_of_new_folders_are_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power takes the folder with all of its marks."""
    synced: list[Path] = []

    def sync(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.chdir(tmp_path)
    CommitFolder(Path("new") / "job")
    assert sorted(synced) == [tmp_path, tmp_path / "new"]
    CommitFolder(Path("new") / "job")
    assert len(synced) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.touch()
    with pytest.raises(EmbeddingError, match=r"clicks\.tsv: cannot have the .*: it is no folder$"):
        CommitFolder(path)
    with pytest.raises(EmbeddingError, match=r"state: cannot have .* of a job: Not a directory$"):
        CommitFolder(path / "state")
    with pytest.raises(EmbeddingError, match="cannot have .* of a job: File name too long$"):
        CommitFolder(tmp_path / ("state" * 99))


def test_a_damaged_mark_is_named(job: JobDescription, tmp_path: Path) -> None:
    folder = CommitFolder(tmp_path / "job")
    path = tmp_path / "job" / f"start-{folder.begin()}" / "marks" / "5.json"
    path.write_text("{")
    with pytest.raises(EmbeddingError, match=r"5\.json: is not JSON"):
        folder.newest()
    path.write_text('{"schema": 9}')
    with pytest.raises(EmbeddingError, match=r"5\.json: has schema 9, needs 2"):
        folder.newest()
    path.write_text('{"schema": 2, "commit": 2}')
    with pytest.raises(EmbeddingError, match=r"5\.json: is no mark of a commit"):
        folder.newest()
