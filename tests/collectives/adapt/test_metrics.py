"""Metrics of collectives: what every rank has; tests/job/test_metrics.py holds the outputs."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.collectives.adapt.metrics import CollectiveMetrics
from headrace.collectives.run.switch import PlanSwitch
from headrace.executor import Executor
from tests.conformance.launch import all_succeed


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


JOB = """
import os, sys
import torch, torch.distributed as dist
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("headrace", store=store, rank=int(os.environ["RANK"]), world_size=2)
dist.new_group([1])
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


def test_a_job_that_adapts_no_plans_has_metrics(tmp_path: Path) -> None:
    """HEADRACE_METRICS had no effect on one host, and nothing said so."""
    destination = str(tmp_path / "{rank}.prom")
    all_succeed(JOB, 2, str(tmp_path / "store"), HEADRACE_METRICS=destination)
    for rank in range(2):
        text = (tmp_path / f"{rank}.prom").read_text()
        assert re.search(rf'^headrace_collectives_total{{rank="{rank}"}} [1-9]', text, re.M), text
        assert f'headrace_sent_bytes_total{{peer="{1 - rank}",rank="{rank}"}}' in text
