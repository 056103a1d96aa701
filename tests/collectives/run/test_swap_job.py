"""A job of torch ranks trains on while its plans change every few milliseconds."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.collectives.run import swap_job
from tests.conformance.launch import outputs, ranks

SCRIPT = Path(swap_job.__file__)
RANKS = 3
CALLS = 3000


def reports(*arguments: str, without: int = -1) -> list[dict[str, Any]]:
    """Reports of the ranks, except for one that is killed."""
    with ranks(RANKS, SCRIPT, *arguments) as processes:
        texts = outputs(processes)  # far below the timeout of the group
        found = []
        for rank, (process, text) in enumerate(zip(processes, texts, strict=True)):
            if rank == without:
                assert process.returncode == -signal.SIGKILL
                continue
            assert process.returncode == 0, f"rank {rank} said:\n{text}"
            # the log of a failure may come after it
            (line,) = [line for line in text.splitlines() if line.startswith("{")][-1:]
            found.append(json.loads(line))
    return found


@pytest.mark.sampled(1, of="whole jobs")
def test_every_call_is_right_and_of_the_same_plan_everywhere() -> None:
    first, *others = reports(str(CALLS), "1")
    for report in (first, *others):
        assert report["errors"] == []
        for name in ("epochs", "probes"):  # what every call was
            assert report[name] == first[name], name
        assert committed(report) == committed(first)
    numbers = [number for number, _ in first["epochs"]]
    assert len(numbers) >= CALLS
    probed = {number + extra for _, number in first["probes"] for extra in range(3)}
    # a probe that was decided last may come after the barrier that ends the job
    called = {*numbers, *(number for number in probed if number <= numbers[-1])}
    assert sorted(called) == list(range(numbers[-1] + 1))
    changes = committed(first)
    for number, epoch in first["epochs"]:
        assert epoch == max((e for at, e in changes if at <= number), default=0)
    assert len({epoch for _, epoch in first["epochs"]}) > 10
    reasons = {reason for _, kind, _, reason in others[-1]["outcomes"] if kind == "refused"}
    assert reasons == {"rank 2 refused: this rank wants no such thing"}
    assert len(first["probes"]) > 2


def committed(report: dict[str, Any]) -> list[tuple[int, int]]:
    """(number of the call, epoch) of the changes that were made."""
    return [(at, epoch) for epoch, _, at, _ in report["outcomes"] if at is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "word"), [(0, "verdict"), (2, "hold")])
def test_a_rank_that_is_killed_amid_a_change_is_named(rank: int, word: str) -> None:
    for report in reports("1000000", "3", str(rank), word, without=rank):
        assert f"rank {rank} died" in report["error"]
