"""Groups until the limit of open files.

The rank that reached the limit raised an error; the others waited for it until their deadline, and
the error did not say that destroying groups helps.
"""

from pathlib import Path

import pytest

from tests.conformance.launch import outputs, ranks

JOB = Path(__file__).with_name("descriptors_job.py")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("short", ["0", "1", "0,1"])
def test_the_limit_of_open_files_is_an_error_at_every_rank(short: str) -> None:
    with ranks(2, JOB, short) as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts


def test_a_shortage_in_a_callbacks_first_call_is_an_error_at_every_rank() -> None:
    """Calls in callbacks make connections of their own at first use.

    The rank without descriptors for them raised, and the others waited until their deadline.
    """
    with ranks(2, JOB.with_name("callback_descriptors_job.py")) as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts
