"""Starts of a job: how often it begins again after a loss, and from where."""

from pathlib import Path

import pytest

from headrace.embeddings import JobError
from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.job.job_processes import JobHosts
from headrace.embeddings.run.job.job_starts import JobStarts
from tests.embeddings.run.test_commits import description, mark_of

LOSS = JobError("trainer 1 was ended by signal 9", 137, lost=True, processes=["trainer 1"])
BEGINS = "trainer 1 was ended by signal 9. The job begins "


class Starts:
    """Starts of a job with two trainers; `lines` has what they told, of the last commit alone."""

    def __init__(self, folder: Path, min_trainers: int | None = None) -> None:
        self.folder = folder
        self.commits = CommitFolder(folder / "state")
        self.lines: list[str] = []
        hosts = JobHosts.on_this_machine(trainers=2)
        self._starts = JobStarts(self.commits, hosts, restart=True, min_trainers=min_trainers)

    def begin(self) -> int:
        """Begin; return the number of trainers."""
        return len(self._starts.begin(self.lines.append).trainers)

    def begin_after_loss(self) -> int:
        self._starts.lose(LOSS)
        return self.begin()

    def commit(self, number: int) -> None:
        data = self.folder / "data.tsv"
        data.write_text("0\n")
        self.commits.write(mark_of(description(data), self.commits.begin(), number))


def test_a_job_begins_again_once_before_each_commit(tmp_path: Path) -> None:
    """The loss of a process before the first commit ended it."""
    starts = Starts(tmp_path)
    assert [starts.begin(), starts.begin_after_loss()] == [2, 2]
    assert starts.lines == [f"{BEGINS}anew."]
    starts.commit(0)
    starts.begin_after_loss()
    assert starts.lines[1:] == [f"{BEGINS}from commit 0: epoch 1, batch 2."]
    with pytest.raises(JobError, match="^trainer 1 was ended by signal 9$"):
        starts.begin_after_loss()
    later = Starts(tmp_path)  # by the same command
    later.begin()
    later.begin_after_loss()
    with pytest.raises(JobError):
        later.begin_after_loss()


def test_a_trainer_is_left_out_where_it_is_lost_again(tmp_path: Path) -> None:
    """One that was lost before the first commit was left out at once."""
    starts = Starts(tmp_path, min_trainers=1)
    assert [starts.begin(), starts.begin_after_loss(), starts.begin_after_loss()] == [2, 2, 1]
    assert starts.lines[-1] == f"{BEGINS}anew, with as many trainers as are left: 1."
