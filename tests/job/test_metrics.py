"""Metrics come in Prometheus' format, where they are asked for, and nowhere else."""

import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import InputError
from headrace.job.metrics import RankMetrics, start_metrics
from tests.waiting import wait_until


class Sample(RankMetrics):
    """A gauge and a count."""

    def collect(self) -> Iterator[Metric]:
        yield self.gauge("level", "A value", 2.5)
        yield self.count("calls", "A count", 7)


def names(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def test_a_file_is_written_for_the_rank(tmp_path: Path) -> None:
    """It was written at the end alone, but for jobs whose plans were adapted."""
    path = tmp_path / "m-3.prom"
    served = start_metrics(Sample(3), tmp_path / "m-{rank}.prom")
    assert served is not None
    wait_until(path.exists, "the file")
    text = path.read_text()
    assert names(text) == {"headrace_level", "headrace_calls"}
    assert 'headrace_level{rank="3"} 2.5' in text
    assert 'headrace_calls_total{rank="3"} 7.0' in text
    served.close()


def test_without_a_place_for_the_rank_only_the_first_writes(tmp_path: Path) -> None:
    assert start_metrics(Sample(1), tmp_path / "m.prom") is None
    served = start_metrics(Sample(0), tmp_path / "m.prom")
    assert served is not None
    served.close()
    assert names((tmp_path / "m.prom").read_text()) >= {"headrace_calls"}


def test_a_device_or_a_pipe_stays_and_a_link_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file took its place: a job of root with /dev/null removed it for all processes."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("file")
    for path in (pipe, link):
        served = start_metrics(Sample(0), path)
        assert served is not None
        served.close()
    assert pipe.is_fifo()
    assert "is not a regular file" in caplog.text
    assert link.is_symlink()
    assert names((tmp_path / "file").read_text()) >= {"headrace_calls"}


def test_a_port_is_on_loopback_and_closes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = start_metrics(Sample(0), port)
    assert served is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert "headrace_level" in names(answer.read().decode())
    served.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


class Others(RankMetrics):
    """Another capability's gauge."""

    def collect(self) -> Iterator[Metric]:
        yield self.gauge("others", "A value", 1)


def test_a_file_named_by_a_text_is_written(tmp_path: Path) -> None:
    """Nothing was written, and nothing said so."""
    path = tmp_path / "m.prom"
    served, beside = start_metrics(Sample(0), str(path)), start_metrics(Others(0), path)
    assert served is not None
    assert beside is not None
    served.close()
    assert names(path.read_text()) == {"headrace_level", "headrace_calls", "headrace_others"}
    beside.close()


class Thirds(RankMetrics):
    """A third one's."""

    def collect(self) -> Iterator[Metric]:
        yield self.gauge("thirds", "A value", 3)


def test_metrics_with_one_port_are_served_together() -> None:
    """Those of a second capability found the port in use, by the same process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def served_names() -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return names(answer.read().decode())

    first = start_metrics([Sample(0), Others(0)], port)
    second = start_metrics(Thirds(0), port)
    assert first is not None
    assert second is not None
    both = {"headrace_level", "headrace_calls", "headrace_others"}
    assert served_names() == {*both, "headrace_thirds"}
    first.close()
    first.close()  # does nothing
    assert served_names() == {"headrace_thirds"}
    second.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


class Valued(RankMetrics):
    """A gauge of a group of processes."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def collect(self) -> Iterator[Metric]:
        yield self.gauge("valued", "A value", self._value)


def test_of_two_metrics_of_a_class_the_older_is_written(tmp_path: Path) -> None:
    """A second process group of all ranks wrote every series twice, which Prometheus refuses."""
    path = tmp_path / "m.prom"
    first, second = start_metrics(Valued(1), path), start_metrics(Valued(2), path)
    assert first is not None
    assert second is not None

    def written() -> list[str]:
        return [line for line in path.read_text().splitlines() if not line.startswith("#")]

    wait_until(path.exists, "the file")
    assert written() == ['headrace_valued{rank="0"} 1.0']
    first.close()
    second.close()
    assert written() == ['headrace_valued{rank="0"} 2.0']


class MoreValued(Valued):
    """The same gauge, and another."""

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        yield self.gauge("more", "A value", self._value)


def test_metrics_of_a_class_and_of_one_that_extends_it_are_one(tmp_path: Path) -> None:
    """Of a hook of "auto" and another hook, every series came twice."""
    path = tmp_path / "m.prom"
    first, second = start_metrics(Valued(1), path), start_metrics(MoreValued(2), path)
    assert first is not None
    assert second is not None
    first.close()  # it writes those of both
    assert path.read_text().count("headrace_valued{") == 1
    second.close()


def test_metrics_of_several_ranks_are_refused() -> None:
    with pytest.raises(InputError, match=r"metrics are of ranks \[0, 1\], needs those of one"):
        start_metrics([Sample(0), Others(1)], 9)
    with pytest.raises(InputError, match=r"metrics are of ranks \[\]"):
        start_metrics([], 9)


def test_a_file_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    served = start_metrics(Sample(0), tmp_path / "gone" / "m.prom")
    assert served is not None
    served.close()


def test_a_child_does_not_keep_the_port_of_its_parent() -> None:
    """A job that was started again found its metrics' port in use.

    Workers that the ended job had forked still had its listening socket: connections to it were
    accepted by the kernel, and answered by no process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = start_metrics(Sample(0), port)
    assert served is not None
    closed, closing = os.pipe()
    child = os.fork()
    if child == 0:  # lives on until the parent has tried the port
        os.close(closing)
        os.read(closed, 1)
        os._exit(0)
    try:
        served.close()
        with socket.socket() as later:
            later.bind(("127.0.0.1", port))
            later.listen()
    finally:
        os.close(closing)
        os.close(closed)
        assert os.waitpid(child, 0)[1] == 0


def test_a_rank_beyond_the_last_port_goes_without(caplog: pytest.LogCaptureFixture) -> None:
    """The job failed at that rank."""
    assert start_metrics(Sample(2), 65_534) is None
    assert "HEADRACE_METRICS: rank 2 cannot serve on 65536" in caplog.text
