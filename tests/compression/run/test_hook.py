"""Compressed training of real processes."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from tests.conformance.launch import outputs, ranks, results
from tests.waiting import JOB_S

SAMPLED = pytest.mark.sampled(1)

JOB = Path(__file__).with_name("hook_job.py")


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(
    ("what", "backend"),
    [
        pytest.param("checks", "headrace", marks=SAMPLED),
        pytest.param("checks", "gloo", marks=SAMPLED),
        ("staged", "headrace"),
        pytest.param("gpu", "headrace", marks=gpu),
        pytest.param("gpu", "cpu:gloo,cuda:gloo", marks=gpu),
    ],
)
def test_training_on_two_ranks(what: str, backend: str) -> None:
    with ranks(2, JOB, what, backend) as processes:
        texts = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], texts
    assert all("all done" in text for text in texts)


@SAMPLED
def test_saved_killed_and_resumed_with_other_buckets_equals_uninterrupted(tmp_path: Path) -> None:
    with ranks(2, JOB, "resumable", "headrace", str(tmp_path), "whole") as processes:
        job = processes[0].job
        arrived = job.read_until(
            lambda: all(rank.has_printed("ready ") or rank.has_ended() for rank in processes),
            JOB_S,
        )
        lines = ["\n".join(rank.lines) for rank in processes]
        assert arrived, lines
        for text in lines:
            found = re.search(r"^ready (\d+)$", text, re.M)
            assert found is not None, text
            os.kill(int(found[1]), signal.SIGKILL)
        whole = results(lines)
    with ranks(2, JOB, "resumable", "headrace", str(tmp_path), "rest") as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts
    assert results(texts) == whole
    assert whole[0] == whole[1]


@SAMPLED
@pytest.mark.parametrize(
    ("backend", "codec", "when"),
    [
        ("headrace", "minmax:4", "after"),
        ("headrace", "minmax:4", "during"),
        ("gloo", "powersgd:2", "after"),
        ("gloo", "minmax:4", "during"),
    ],
)
def test_a_rank_killed_between_phases_is_named_and_residuals_are_as_before(
    backend: str, codec: str, when: str
) -> None:
    with ranks(3, JOB, "dies", backend, codec, when) as processes:
        texts = outputs(processes)  # far below the timeout of the group
    assert processes[2].returncode == -signal.SIGKILL
    for text in texts[:2]:
        assert re.search(r"^failed: ExchangeError .*\brank 2\b.*checkpoint", text, re.M), text
        assert (re.search(r"^missing \(2,\)$", text, re.M) is not None) == (backend == "gloo")
        assert re.search(r"^unchanged \(\)$", text, re.M), text
