"""A group that is destroyed and made again over a store that outlives it, as under torchrun."""

from pathlib import Path

from tests.conformance.launch import outputs, ranks

JOB = Path(__file__).with_name("again_job.py")


def test_a_group_can_be_made_again() -> None:
    with ranks(2, JOB) as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts
    assert all("all lives went well" in text for text in texts)
