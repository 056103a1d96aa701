"""Jobs: processes side by side, until all are done, one fails, or their time is up."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.launch.job import run_job
from headrace.launch.roles import Role, start_local
from tests.launch.test_roles import assert_ends
from tests.waiting import HANG_S, STALL_S, no_hang, with_longer_deadlines


def shell(*scripts: str) -> list[Role]:
    return [
        Role(name=f"rank {rank}", argv=["sh", "-c", script], env={"RANK": str(rank)})
        for rank, script in enumerate(scripts)
    ]


def test_lines_come_in_their_order_with_those_of_standard_error() -> None:
    lines: list[tuple[int, str]] = []
    script = "echo $RANK first; echo $RANK second >&2; printf $RANK-third"
    assert run_job(shell(script, script), on_line=lambda *line: lines.append(line)) == [0, 0]
    for rank in (0, 1):
        found = [text for of, text in lines if of == rank]
        assert found == [f"{rank} first", f"{rank} second", f"{rank}-third"]


def test_one_that_fails_ends_the_others() -> None:
    with no_hang():
        assert run_job(shell("exec sleep 600", "exit 9", "exec sleep 600")) == [-15, 9, -15]


def test_the_others_may_say_how_they_end(tmp_path: Path) -> None:
    lines: list[str] = []
    is_up = tmp_path / "up"
    trapping = (
        f"trap 'echo ending; exit 4' TERM; echo up; touch {is_up}; while :; do sleep 0.05; done"
    )
    waiting = f"until [ -e {is_up} ]; do sleep 0.05; done; exit 9"
    codes = run_job(shell(trapping, waiting), on_line=lambda _rank, text: lines.append(text))
    assert codes == [4, 9]
    assert lines[0] == "up"
    assert "ending" in lines


def test_a_job_past_its_time_is_ended() -> None:
    deaf = "trap '' TERM; while :; do sleep 0.05; done"

    def check(timeout_s: float) -> None:
        codes = run_job(shell("exec sleep 600", deaf, "exit 0"), timeout_s=timeout_s, grace_s=0.3)
        assert codes == [-signal.SIGTERM, -signal.SIGKILL, 0]

    with no_hang():
        with_longer_deadlines(check)


def test_a_job_past_its_time_is_ended_while_it_writes() -> None:
    """It went on for as long as there was a line that had not been passed on."""
    latest = time.monotonic() + STALL_S

    def pass_on(_index: int, _line: str) -> None:
        assert time.monotonic() < latest, "the job goes on"
        time.sleep(0.05)  # longer than until the next line

    endless = "while :; do echo line; sleep 0.01; done"
    codes = run_job(shell(endless), on_line=pass_on, timeout_s=0.2)
    assert codes == [-signal.SIGTERM]


def test_a_process_that_left_its_group_does_not_hold_the_job_up(tmp_path: Path) -> None:
    lines: list[tuple[int, str]] = []
    job_ended = tmp_path / "job ended"
    waiting = f"until [ -e '{job_ended}' ]; do sleep 0.05; done"
    try:
        with no_hang():
            job = shell(f'echo $RANK; setsid sh -c "{waiting}" &')
            assert run_job(job, on_line=lambda *line: lines.append(line), grace_s=0.3) == [0]
    finally:
        job_ended.touch()
    assert lines == [(0, "0")]


def test_without_a_reader_the_output_goes_to_this_process() -> None:
    assert run_job(shell("test ! -t 0; exit 0")) == [0]


PARENT = """
from headrace.launch.job import run_job
from headrace.launch.roles import Role
role = Role(name="rank 0", argv=["sh", "-c", "echo $$; exec sleep 600"])
run_job([role], on_line=lambda _index, line: print(line, flush=True))
"""


def test_no_process_outlives_a_killed_parent() -> None:
    """It went on: a benchmark's, or one that waits for its peers for minutes."""
    parent = start_local([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        pid = int(lines.readline())
        parent.kill()
        parent.wait(HANG_S)
        assert_ends(pid)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run_job([Role(name="rank 0", argv=["no-such-program"])])


def test_signals_that_python_ignores_end_a_process() -> None:
    assert run_job(shell("kill -PIPE $$; exit 3")) == [-signal.SIGPIPE]
