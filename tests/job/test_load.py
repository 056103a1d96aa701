"""The load of a machine: what is counted since the watch began, and the word for it."""

import time
from dataclasses import replace

import pytest

from headrace.job.load import LoadWatch, MachineLoad, load_text

IDLE = MachineLoad(
    seconds=2.0, processors=2, load_average=0.3, waited_share=0.004, stolen_share=0.0
)


def test_an_idle_machine_gets_no_word() -> None:
    assert not IDLE.busy
    assert IDLE.warning is None
    assert IDLE.text == (
        "idle: waited 0% of the time for a processor, load average 0.3 on 2 processors"
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"waited_share": 0.31}, "waited 31% of the time for a processor"),
        ({"stolen_share": 0.2}, "20% went to other virtual machines"),
        ({"waited_share": None, "load_average": 3.0}, "load average 3.0 on 2 processors"),
    ],
)
def test_a_busy_machine_is_called_so(changes: dict[str, float | None], text: str) -> None:
    """Profiles of a busy machine (a convolution of 94 ms) said nothing of it."""
    load = MachineLoad(**{name: getattr(IDLE, name) for name in MachineLoad.__slots__} | changes)
    assert load.busy
    assert text in load.text
    assert load.warning is not None
    assert load.warning.startswith("The machine was busy: ")


def test_a_provenance_keeps_it_and_may_lack_it() -> None:
    assert MachineLoad.from_provenance(IDLE.to_provenance()) == IDLE
    assert load_text(IDLE.to_provenance()) == IDLE.text
    for earlier in ({}, {"load": "x"}, {"load": {"seconds": 1.0}}):
        assert load_text(earlier) == "not stated"


@pytest.mark.parametrize("load", [IDLE, replace(IDLE, waited_share=None, stolen_share=None)])
def test_its_numbers_are_those_of_one_equal_to_it(load: MachineLoad) -> None:
    assert MachineLoad.from_numbers(load.numbers) == load


def test_a_watch_counts_since_it_was_made() -> None:
    watch = LoadWatch()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    load = watch.load()
    assert load.seconds >= 0.05
    assert load.processors >= 1
    for share in (load.waited_share, load.stolen_share):
        assert share is None or 0 <= share <= 1
