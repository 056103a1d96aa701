"""Settings of collectives; tests/test_settings.py holds what every section has to do."""

from pathlib import Path

import pytest

from headrace.collectives import CollectiveSettings
from headrace.errors import InputError


def test_values_are_read(tmp_path: Path) -> None:
    book = tmp_path / "book"
    book.touch()
    found = CollectiveSettings.from_environment(
        {
            "HEADRACE_PLAN_BOOK": str(book),
            "HEADRACE_DEADLINE_S": "2.5",
            "HEADRACE_CHANNELS": "4",
            "HEADRACE_THREADS": "3",
            "HEADRACE_SHARED_MEMORY": "off",
            "HEADRACE_MEASURE": "Always",
            "HEADRACE_ADAPT": "Off",
            "HEADRACE_ADAPT_LOG": str(tmp_path / "log"),
            "TORCH_FR_BUFFER_SIZE": "0",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "5",
        }
    )
    assert found == CollectiveSettings(
        plan_book=book,
        deadline_limit_s=2.5,
        channels=4,
        threads=3,
        shared_memory=False,
        measure="always",
        adapt=False,
        adapt_log=tmp_path / "log",
        recorder_entries=0,
        nccl_recorder_entries=5,
    )


@pytest.mark.parametrize(
    ("environment", "observed"),
    [
        ({}, False),
        ({"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}, False),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}, True),
        ({"TORCH_DIST_NAN_CHECK": "1"}, True),
        ({"TORCH_DIST_NAN_CHECK": "true"}, False),
    ],
)
def test_tools_of_torch_observe_calls(environment: dict[str, str], observed: bool) -> None:
    assert CollectiveSettings.from_environment(environment).observed == observed


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("HEADRACE_PLAN_BOOK", "/no/such/file", "the path of a file that exists"),
        ("HEADRACE_MEASURE", "sometimes", "one of auto, off, always"),
        ("HEADRACE_ADAPT", "yes", "on or off"),
        ("HEADRACE_ADAPT_LOG", "/no/such/folder/log", "a file in a folder that exists"),
        ("HEADRACE_CHANNELS", "0", "1 to 64"),
        ("HEADRACE_CHANNELS", "65", "1 to 64"),
        ("HEADRACE_CHANNELS", "two", "1 to 64"),
    ],
)
def test_a_bad_value_names_variable_finding_and_remedy(
    variable: str, text: str, allowed: str
) -> None:
    with pytest.raises(InputError) as caught:
        CollectiveSettings.from_environment({variable: text})
    message = str(caught.value)
    assert message.startswith(f"{variable} is '{text}', needs ")
    assert allowed in message
