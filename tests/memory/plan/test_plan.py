"""Memory plans: kept as they are, proven again, refused where they are altered."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ArtifactError
from headrace.memory.errors import ScheduleError
from headrace.memory.plan.baselines import sqrt_schedule
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.verify import verify
from headrace.memory.report.tables import plan_tables, verify_step_plan
from headrace.memory.schedule import Schedule, Step
from tests.memory.graphs import chain
from tests.memory.test_profile import changed, profile_of


def small() -> MemoryPlan:
    graph = chain(9, resident=5)
    schedule = sqrt_schedule(graph)
    proof = verify(graph, schedule)
    return MemoryPlan(
        profile=profile_of(graph),
        budget_bytes=100,
        schedule=schedule,
        peak_bytes=proof.peak_bytes,
        time_us=proof.time_us,
        bound_us=20.0,
        settings={"seed": 3},
        provenance={"made": "by a test"},
    )


def test_a_plan_is_saved_loaded_and_proven(tmp_path: Path) -> None:
    plan = small()
    plan.save(tmp_path / "plan")
    found = MemoryPlan.load(tmp_path / "plan")
    assert found == plan
    assert found.verify().peak_bytes == plan.peak_bytes
    assert found.plain_us == 18.0
    assert found.gap == pytest.approx(1 - 20 / plan.time_us)
    assert len(list(plan_tables(found, everything=False))) == 2
    (line,) = verify_step_plan(found.to_artifact(), "a plan")
    assert line.startswith(f"ok {plan.digest[:12]} peak ")
    assert line.endswith("; the bound is not part of the proof")


def test_a_plan_that_is_not_what_it_predicts_is_refused() -> None:
    plan = small()
    for wrong, message in (
        (replace(plan, budget_bytes=50), "the budget is 50"),
        (replace(plan, peak_bytes=40), "peak_bytes is 40, the replay's peak is"),
        (replace(plan, time_us=1.0), r"time_us is 1.0, the replay's is"),
        (replace(plan, bound_us=99.0), r"the bound is 99.0, the plan needs \d"),
        (replace(plan, schedule=Schedule(steps=(Step(0),), forward_steps=1)), "does not run"),
    ):
        with pytest.raises(ScheduleError, match=message):
            wrong.verify()


def test_altered_fields_are_refused_by_name() -> None:
    artifact = small().to_artifact()
    for name, value, message in (
        ("profile_digest", "00", "field 'profile_digest' is '00', needs that of 'profile'"),
        ("budget_bytes", -1, "field 'budget_bytes' is -1, needs 0 to"),
        ("forward_steps", 99, "field 'forward_steps' is 99, needs 0 to"),
        ("bound_us", -0.5, "field 'bound_us' is -0.5, needs 0 or more"),
        ("bound_us", 99.0, r"field 'bound_us' is 99.0, needs at most 'time_us', \d"),
    ):
        wrong = replace(artifact, head={**artifact.head, name: value})
        with pytest.raises(ArtifactError, match=f"^a.file: {message}"):
            MemoryPlan.from_artifact(wrong, "a.file")
    steps = len(artifact.tables["steps"]["operator"])
    with pytest.raises(
        ArtifactError, match=r"table 'steps': field '\[0\]\[0\]': 0.5 is not an int"
    ):
        MemoryPlan.from_artifact(changed(artifact, "steps", "operator", np.full(steps, 0.5)))
