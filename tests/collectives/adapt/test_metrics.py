"""Metrics come in Prometheus' format, where they are asked for, and nowhere else."""

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.collectives.adapt.metrics import Metrics, start_metrics
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.switch import PlanSwitch


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    executor = Executor(0, 1, secret="metrics")
    executor.connect([executor.address])
    switch = PlanSwitch(executor, lambda _book: lambda: None)
    yield Metrics(0, switch, executor.statistics_reader())
    executor.close()


def names(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def test_a_file_is_written_for_the_rank(metrics: Metrics, tmp_path: Path) -> None:
    served = start_metrics(metrics, 3, tmp_path / "m-{rank}.prom")
    assert served is not None
    served.refresh()
    assert "headrace_plan_epoch" in names((tmp_path / "m-3.prom").read_text())
    served.close()


def test_without_a_place_for_the_rank_only_the_first_writes(
    metrics: Metrics, tmp_path: Path
) -> None:
    assert start_metrics(metrics, 1, tmp_path / "m.prom") is None
    served = start_metrics(metrics, 0, tmp_path / "m.prom")
    assert served is not None
    served.close()
    assert names((tmp_path / "m.prom").read_text()) >= {"headrace_collectives"}


def test_a_port_is_on_loopback_and_closes(metrics: Metrics) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = start_metrics(metrics, 0, port)
    assert served is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert "headrace_plan_epoch" in names(answer.read().decode())
    served.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_nothing_is_served_unless_asked(metrics: Metrics) -> None:
    assert start_metrics(metrics, 0, None) is None


def test_a_file_that_cannot_be_written_is_given_up(metrics: Metrics, tmp_path: Path) -> None:
    served = start_metrics(metrics, 0, tmp_path / "gone" / "m.prom")
    assert served is not None
    served.refresh()
    served.close()
