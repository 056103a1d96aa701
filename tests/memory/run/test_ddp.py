"""DistributedDataParallel around a fitted module, in real processes."""

from pathlib import Path

import pytest

from tests.conformance.launch import outputs, ranks

SAMPLED = pytest.mark.sampled(1)

JOB = Path(__file__).with_name("ddp_job.py")


@SAMPLED
def test_two_ranks_with_different_plans_train_as_plain_ones() -> None:
    """Gradients, parameters and buffers are equal to the last bit."""
    with ranks(2, JOB, "gloo", "step", "accumulation", "autocast") as processes:
        texts = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], texts
    for text in texts:
        assert text.count("equal ") == 6
        assert "all done" in text


@SAMPLED
def test_a_budget_holds_with_the_buckets() -> None:
    """It failed on a busy machine: Gloo's threads freed buckets late, unseen by the profiler."""
    with ranks(1, JOB, "fake", "fit") as (process,):
        (text,) = outputs([process])
    assert process.returncode == 0, text
    assert "counted" in text
