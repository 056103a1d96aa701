"""Time of recovery by a checkpoint where trainers have tables in shards: all load theirs again.

The paper's rival, in its best case: the checkpoint was written right before the failure.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.embeddings.job_of_recovery import DIM, TABLES
from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from headrace.launch.roles import Role, Roles

TRAINERS = 2
_ROWS = (640_000, 1_280_000)
"""Of every table: those of the section `recovery`, and twice as many."""

_ROUNDS = 3
_ANSWER_S = 300.0


def bars() -> dict[str, str]:
    """Return no bars: the rows of `recovery` have them."""
    return {}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Write checkpoints, and time trainers that begin with them."""
    del quick
    for rows in _ROWS:
        with tempfile.TemporaryDirectory() as folder:
            seconds = [_seconds(Path(folder), rows) for _ in range(_ROUNDS)]
        report.row(
            f"{TRAINERS} trainers with tables in shards, all from a checkpoint",
            tables_gb=4e-9 * TABLES * rows * DIM,
            written_s=statistics.median(written for written, _ in seconds),
            restored_s=statistics.median(restored for _, restored in seconds),
            worst_s=max(restored for _, restored in seconds),
        )
    report.note(
        "tables in shards: from the trainers' start to tables in memory, of files that are not in "
        "the page cache; batches since the checkpoint are not trained again. `recovery` kills "
        "trainers of jobs with as many rows as the smaller tables. The paper has 13 minutes "
        "against less than one, in which its servers, which live, read no rows; here all processes "
        "begin again, and servers open their tables"
    )


def _seconds(folder: Path, rows: int) -> tuple[float, float]:
    """Return the seconds of writing a checkpoint, and of beginning with it."""
    written = max(_answers(folder, rows, "write"))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    _answers(folder, rows, "restore")
    return written, time.perf_counter() - began


def _answers(folder: Path, rows: int, task: str) -> list[float]:
    """Return each trainer's seconds; they are started for it."""
    command = [sys.executable, "-m", "benchmarks.embeddings.rank_of_restoring"]
    roles = {
        rank: Role(name=f"trainer {rank}", argv=command, env=WHERE) for rank in range(TRAINERS)
    }
    with Roles(roles) as trainers:
        for rank in range(TRAINERS):
            path = str(folder / f"shard-{rank}.pt")
            trainers.send(
                rank, {"task": task, "path": path, "rows": rows, "rank": rank, "ranks": TRAINERS}
            )
        seconds: list[float] = []
        while len(seconds) < TRAINERS:
            answer = trainers.expect("tables", _ANSWER_S)
            if answer is None:
                raise RuntimeError("the trainers ended early")
            seconds.append(answer[1]["seconds"])
    return seconds
