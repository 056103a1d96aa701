"""Commands with processes and temporary folders clean up at SIGTERM and at a closed terminal."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.ending import unwound_by_signals
from headrace.compression.cli import measure
from headrace.index.adapt import offline

ENDING = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def unheard() -> Iterator[list[int]]:
    """Signals that no command took: their usual action would end the tests."""
    numbers: list[int] = []
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        signal.signal(number, lambda number, _frame: numbers.append(number))
    yield numbers
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_unwinds_the_block_and_has_its_action_back_then(
    unheard: list[int], number: signal.Signals
) -> None:
    """A closed terminal left an embedding job's trainers, and files that were not complete."""
    with pytest.raises(SystemExit) as ended, unwound_by_signals():
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert not unheard
    signal.raise_signal(number)
    assert unheard == [number]


def test_a_signal_that_is_ignored_stays_so(unheard: list[int]) -> None:
    """As SIGHUP is under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with unwound_by_signals():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", ENDING)
def test_a_second_signal_does_not_cut_the_clean_up_short(
    unheard: list[int], number: signal.Signals
) -> None:
    """Of two at once, as a closed terminal sends them, the second left an incomplete file."""
    cleaned: list[int] = []
    clean_up = ExitStack()
    clean_up.callback(cleaned.append, number)
    for further in ENDING:
        clean_up.callback(signal.raise_signal, further)
    with pytest.raises(SystemExit), unwound_by_signals(), clean_up:
        signal.raise_signal(number)
    assert cleaned == [number]
    assert not unheard


@pytest.mark.parametrize("number", ENDING)
def test_commands_that_have_a_temporary_folder_unwind(
    unheard: list[int], number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ended at once: the folder stayed, and for seconds their processes."""
    keys = tmp_path / "keys.npy"
    np.save(keys, np.arange(1000))
    for module, function, arguments in (
        (measure, "measure_locally", ["compression", "measure", "-o", str(tmp_path / "profile")]),
        (offline, "follow_trace", ["index", "adapt", str(keys)]),
    ):
        monkeypatch.setattr(
            module, function, lambda *_arguments, **_options: signal.raise_signal(number)
        )
        assert CliRunner().invoke(app, arguments).exit_code == 128 + number
    assert not unheard
