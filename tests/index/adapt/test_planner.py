"""Planning in a process of its own: proposals and errors come back."""

import numpy as np
import pytest

from headrace.errors import CommunicationError
from headrace.index.adapt import planner
from headrace.index.adapt.planner import PlannerProcess
from headrace.index.adapt.propose import propose_configuration
from headrace.index.configuration import Configuration
from headrace.index.errors import PlanningError
from headrace.index.trace import INSERT, Trace


def writes(count: int = 20_000) -> Trace:
    random = np.random.default_rng(0)
    return Trace(
        loaded=random.integers(0, 2**60, count, np.uint64),
        operations=np.full(count, INSERT, np.uint8),
        keys=random.integers(0, 2**60, count, np.uint64),
    )


def test_a_process_plans_as_a_call_does() -> None:
    process = PlannerProcess()
    try:
        for _ in range(2):
            found = process(writes(), Configuration(leaf="gapped"), 4, False)
            assert found.plan is not None
            assert found.configuration == found.plan.configuration
            assert found.gain > 0.2
    finally:
        process.close()


def test_an_error_of_planning_is_named_and_the_process_serves_on() -> None:
    empty = np.empty(0, np.uint64)
    process = PlannerProcess(most_bytes_per_key=1e-3)
    try:
        for _ in range(2):
            with pytest.raises(PlanningError, match="no keys and no operations"):
                process(
                    Trace(loaded=empty, operations=empty.astype(np.uint8), keys=empty),
                    Configuration(),
                    8,
                    True,
                )
    finally:
        process.close()
    with pytest.raises(CommunicationError, match="planning an index"):
        process(writes(), Configuration(), 8, False)


def test_a_process_that_died_or_is_late_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later plan failed; the late reply was taken for that to the next request."""
    replaced: list[str] = []

    class LateRoles:
        def __init__(self, _roles: object) -> None: ...

        def __enter__(self) -> None: ...

        def send(self, _key: str, _message: object) -> None: ...

        def expect(self, what: str, _timeout_s: float) -> None:
            raise CommunicationError(f"{what} is stuck")

        def restart(self, key: str) -> None:
            replaced.append(key)

        def end(self) -> None: ...

    monkeypatch.setattr(planner, "Roles", LateRoles)
    process = PlannerProcess()
    for _ in range(2):  # the second one after the end
        with pytest.raises(CommunicationError, match="planning an index is stuck"):
            process(writes(10), Configuration(), 8, False)
        process.close()
    assert replaced == ["planner"]


def test_what_is_in_force_is_tried() -> None:
    current = Configuration(leaf="gapped", leaf_keys=8192)
    found = propose_configuration(writes(), current, 8, True)
    assert found.plan is not None
    tried = {each.configuration for each in found.plan.candidates if each.trials}
    assert {current, Configuration()} <= tried
    assert {each.leaf for each in tried} >= {"gapped", "hashed", "log"}
