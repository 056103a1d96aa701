"""Metrics of plans for Prometheus."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import headrace.memory
from headrace.errors import InputError
from headrace.memory import MemoryPlan
from tests.old_files_test import WRITTEN


def test_metrics_are_those_of_the_plans() -> None:
    pytest.importorskip("prometheus_client")
    from headrace.memory import MemoryMetrics

    plan = MemoryPlan.load(WRITTEN / "memory-plan.headrace")
    fitted: Any = SimpleNamespace(plans=[plan])
    samples = [sample for m in MemoryMetrics(2, fitted).collect() for sample in m.samples]
    assert {(s.labels["rank"], s.labels["plan"]) for s in samples} == {("2", plan.digest[:12])}
    values = {s.name: s.value for s in samples}
    assert values["headrace_memory_budget_bytes"] == plan.budget_bytes
    assert values["headrace_memory_peak_bytes"] == plan.peak_bytes
    assert values["headrace_memory_step_seconds"] == plan.time_us / 1e6
    assert ("headrace_memory_eager_peak_bytes" in values) == (plan.profile.eager is not None)


def test_metrics_without_their_package_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        InputError, match=r"MemoryMetrics needs .* pip install 'headrace\[metrics\]'"
    ):
        headrace.memory.MemoryMetrics  # noqa: B018
