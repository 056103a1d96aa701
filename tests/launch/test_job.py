"""Jobs: processes side by side, until all are done, one fails, or their time is up."""

import signal
import time

from headrace.launch.job import run_job
from headrace.launch.roles import Role


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
    began = time.monotonic()
    assert run_job(shell("exec sleep 60", "exit 9", "exec sleep 60")) == [-15, 9, -15]
    assert time.monotonic() - began < 5.0


def test_the_others_may_say_how_they_end() -> None:
    lines: list[str] = []
    trapping = "trap 'echo ending; exit 4' TERM; echo up; while :; do sleep 0.05; done"
    waiting = "sleep 0.5; exit 9"
    codes = run_job(shell(trapping, waiting), on_line=lambda _rank, text: lines.append(text))
    assert codes == [4, 9]
    assert lines[0] == "up"
    assert "ending" in lines


def test_a_job_past_its_time_is_ended() -> None:
    began = time.monotonic()
    deaf = "trap '' TERM; while :; do sleep 0.05; done"
    codes = run_job(shell("exec sleep 60", deaf, "exit 0"), timeout_s=0.5, grace_s=0.3)
    assert codes == [-signal.SIGTERM, -signal.SIGKILL, 0]
    assert time.monotonic() - began < 5.0


def test_a_process_that_left_its_group_does_not_hold_the_job_up() -> None:
    lines: list[tuple[int, str]] = []
    began = time.monotonic()
    job = shell("echo $RANK; setsid sleep 8 &")
    assert run_job(job, on_line=lambda *line: lines.append(line), grace_s=0.3) == [0]
    assert lines == [(0, "0")]
    assert time.monotonic() - began < 5.0


def test_without_a_reader_the_output_goes_to_this_process() -> None:
    assert run_job(shell("test ! -t 0; exit 0")) == [0]
