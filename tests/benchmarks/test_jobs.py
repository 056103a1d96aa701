"""Lines of JSON from ranks to the process that started them."""

import sys
from pathlib import Path

import pytest

from benchmarks.jobs import WHERE, emit, jobs_output
from headrace.testbed import Testbed, TestbedSpec
from tests.waiting import JOB_S

SPEC = TestbedSpec.from_table(
    {"name": "jobs", "defaults": {"host_rate": "1gbit"}, "racks": [{"hosts": 2}]}
)

RANK = """
import os, sys
from benchmarks.jobs import emit
rank = int(os.environ["RANK"])
emit("begun", twice=2 * rank)
print("no JSON")
emit("done", counts={"a": 1})
sys.exit(int(sys.argv[1]))
"""


def test_a_line_is_an_object_and_is_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    emit("part", ms=[1.5, 2], mode="on")
    emit("done")
    assert capsys.readouterr().out == (
        '{"event": "part", "ms": [1.5, 2], "mode": "on"}\n{"event": "done"}\n'
    )


def run(folder: Path, code: int) -> tuple[list[dict], list[dict]]:
    script = folder / "rank.py"
    script.write_text(RANK)
    events: list[dict] = []
    with Testbed.up(SPEC) as testbed:
        lines = jobs_output(
            testbed,
            [sys.executable, str(script), str(code)],
            (0, 1),
            env=WHERE,
            on_event=events.append,
            timeout_s=JOB_S,
        )
    return lines, events


def test_all_ranks_lines_are_read(tmp_path: Path) -> None:
    lines, events = run(tmp_path, 0)
    by_rank = [[line for line in lines if line["rank"] == rank] for rank in range(2)]
    assert by_rank == [
        [
            {"rank": rank, "event": "begun", "twice": 2 * rank},
            {"rank": rank, "event": "done", "counts": {"a": 1}},
        ]
        for rank in range(2)
    ]
    assert events == by_rank[0]


def test_a_job_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r"job failed: rank . on host. ended with exit code 3;.*\nno JSON"
    ):
        run(tmp_path, 3)
