"""A rank is killed, or stopped, in the middle of a collective."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

RANKS = 4
VICTIM = 2
WORKER = Path(__file__).with_name("rank.py")


@contextmanager
def job(deadline_s: float, *options: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that are in the middle of their collectives; all gone afterwards."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(RANKS), str(deadline_s), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        addresses = [line(rank) for rank in ranks]
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(" ".join(addresses) + "\n")
            rank.stdin.flush()
        assert [line(rank) for rank in ranks] == ["running"] * RANKS
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("attempt", range(3))
def test_survivors_of_a_kill_name_the_dead(attempt: int) -> None:
    with job(deadline_s=30.0) as ranks:
        ranks[VICTIM].send_signal(signal.SIGKILL)
        survivors = [rank for index, rank in enumerate(ranks) if index != VICTIM]
        reports = [json.loads(line(rank)) for rank in survivors]
        for report in reports:
            assert f"rank {VICTIM} died" in report["error"]
            assert report["after_s"] < 10.0
            assert report["descriptors_after"] == report["descriptors_before"]
        assert [rank.wait(10) for rank in survivors] == [0] * (RANKS - 1)
    for report in reports:
        with pytest.raises(ProcessLookupError):
            os.kill(report["pid"], 0)


@pytest.mark.timeout(90)
def test_a_killed_rank_with_children_is_noticed_at_once() -> None:
    # A forked child used to hold on to its parent's sockets: no peer saw the connection end.
    with job(30.0, "with a child") as ranks:
        ranks[VICTIM].send_signal(signal.SIGKILL)
        for index, rank in enumerate(ranks):
            if index != VICTIM:
                report = json.loads(line(rank))
                assert f"rank {VICTIM} died" in report["error"]
                assert report["after_s"] < 4.0


@pytest.mark.timeout(90)
def test_a_silent_rank_runs_into_the_deadline() -> None:
    with job(deadline_s=2.0) as ranks:
        ranks[VICTIM].send_signal(signal.SIGSTOP)
        for index, rank in enumerate(ranks):
            if index == VICTIM:
                continue
            report = json.loads(line(rank))
            assert "ran out of time" in report["error"]
            assert "rank" in report["error"]
            assert report["after_s"] < 10.0
