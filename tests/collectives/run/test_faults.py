"""Ranks die, lag, disagree: every other rank gets an error that names the culprit, in time."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conformance.launch import Rank, outputs, ranks
from tests.waiting import JOB_S

JOB = Path(__file__).with_name("fault_job.py")
RANKS = 3
VICTIM = 1


def wait_until_ready(processes: list[Rank]) -> list[int]:
    """Return the ids of the processes."""
    job = processes[0].job
    ready = job.read_until(
        lambda: all(rank.has_printed("ready ") or rank.has_ended() for rank in processes), JOB_S
    )
    assert ready, [rank.lines for rank in processes]
    for rank in processes:
        assert not rank.has_ended(), f"code {rank.returncode}: {rank.lines}"
    lines = [line for rank in processes for line in rank.lines if line.startswith("ready ")]
    return [int(line.split()[1]) for line in lines]


def survivors_of(how: str) -> list[str]:
    """Run the job, kill the victim in the middle of it; what the others said."""
    with ranks(RANKS, JOB, how) as processes:
        pids = wait_until_ready(processes)
        time.sleep(0.3)
        os.kill(pids[VICTIM], signal.SIGKILL)
        survivors = [process for rank, process in enumerate(processes) if rank != VICTIM]
        texts = outputs(survivors)
        assert [process.returncode for process in survivors] == [0] * (RANKS - 1), texts
    return texts


def nothing_is_left(text: str) -> None:
    left = re.search(r"descriptors (\d+) then (\d+), threads \[(.*)\]", text)
    assert left is not None, text
    # torch's store keeps some; of the group nothing is to stay: a socket per peer, two event
    # queues and their alarms
    assert int(left[2]) <= int(left[1]) - (RANKS - 1) - 4, text
    assert left[3] == "", text


def test_a_killed_rank_is_named_by_every_survivor_however_it_waits() -> None:
    ways = ("a synchronous call", "wait", "future", "message", "a later call")
    for text in survivors_of("killed"):
        for way in ways:
            assert re.search(rf"^{way} failed: .*\brank {VICTIM}\b", text, re.M), text
        nothing_is_left(text)


def test_extensions_under_way_fail_on_all_ranks() -> None:
    with ranks(RANKS, JOB, "extended") as processes:
        texts = outputs(processes)
        assert processes[VICTIM].returncode == -signal.SIGKILL, texts
    for rank, text in enumerate(texts):
        if rank == VICTIM:
            assert len(re.findall(r"^raising failed: .*no votes", text, re.M)) == 3, text
        else:
            named = rf"^raising failed: .*failed at rank {VICTIM}: no votes"
            assert len(re.findall(named, text, re.M)) == 3, text
            assert len(re.findall(rf"^dying failed: .*\brank {VICTIM}\b", text, re.M)) == 2, text
            nothing_is_left(text)
        assert re.search(r"^later failed: .*no votes", text, re.M), text
        assert re.search(r"^swapped failed: .*same calls", text, re.M), text


@pytest.mark.slow
def test_a_rank_killed_in_training_is_named_by_every_survivor() -> None:
    for text in survivors_of("training"):
        assert re.search(rf"^training failed: .*\brank {VICTIM}\b", text, re.M), text
        nothing_is_left(text)


def test_ranks_that_lag_or_differ_are_named() -> None:
    with ranks(RANKS, JOB, "disagreeing") as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0] * RANKS, texts
    for rank, text in enumerate(texts):
        if rank != VICTIM:
            assert re.search(rf"^waiting failed: .*time.*\brank {VICTIM}\b", text, re.M), text
        assert re.search(r"^differing failed: .*same calls", text, re.M), text
        nothing_is_left(text)


@pytest.mark.slow
def test_a_rank_that_comes_late_gets_the_error_of_those_that_gave_up() -> None:
    # It used to succeed: what it needed had been sent before the others gave up.
    with ranks(RANKS, JOB, "late") as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0] * RANKS, texts
    found = {
        re.findall(r"^(?:reducing|a later call) failed: (.*)$", text, re.M)[0] for text in texts
    }
    assert all("timed out: the timeout of 3 s passed in collective 0" in text for text in found), (
        texts
    )
    for rank, text in enumerate(texts):
        assert "went well" not in text
        assert len(re.findall(r"failed: .*timed out: the timeout", text)) == 2, text
        if rank != VICTIM:  # waits of their own, in a group that goes on
            assert re.search(r"^a short wait failed: .*timed out after 0\.2 s", text, re.M), text
            assert re.search(r"^a short barrier failed: .*monitoredBarrier", text, re.M), text
        assert f"then {[float(RANKS)] * 4}" in text


def test_an_interpreter_ends_without_destroy_process_group() -> None:
    with ranks(2, JOB, "abandoned") as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts
    for text in texts:
        assert "leaked" not in text, text
        assert "Traceback" not in text, text
