"""Metrics of collectives: what every rank has; tests/job/test_metrics.py holds the outputs."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.collectives.adapt.metrics import CollectiveMetrics
from headrace.collectives.run.switch import PlanSwitch
from headrace.executor import Executor


def test_every_rank_has_its_plan_calls_and_connections() -> None:
    executor = Executor(0, 1, secret="metrics")
    executor.connect([executor.address])
    switch = PlanSwitch(executor, lambda _book: lambda: None)
    registry = CollectorRegistry()
    registry.register(CollectiveMetrics(0, switch, executor.statistics_reader()))
    found = {
        each.name for each in text_string_to_metric_families(generate_latest(registry).decode())
    }
    executor.close()
    assert found == {
        "headrace_plan_epoch",
        "headrace_collectives",
        "headrace_sent_bytes",
        "headrace_received_bytes",
        "headrace_retransmits",
        "headrace_rtt_seconds",
        "headrace_rate_bytes_per_second",
    }
