"""A rank is killed, or stopped, in the middle of a collective."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import _native
from headrace.testbed import Testbed, TestbedSpec, network

RANKS = 4
VICTIM = 2
WORKER = Path(__file__).with_name("rank.py")


Start = Callable[..., "subprocess.Popen[str]"]
TLS = pytest.param(
    "over tls", marks=pytest.mark.skipif(not _native.has_tls(), reason="built without OpenSSL")
)
TRANSPORTS = pytest.mark.parametrize("transport", ["in memory", "over tcp", TLS])


def here(_rank: int, argv: list[str], **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, *argv], **options)


@contextmanager
def job(
    deadline_s: float,
    *options: str,
    start: Start = here,
    hosts: Sequence[str] = ("127.0.0.1",) * RANKS,
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that are in the middle of their collectives; all gone afterwards.

    `start` starts Python for a rank, which listens on the rank's address of `hosts`.
    """
    ranks = [
        start(
            rank,
            [str(WORKER), str(rank), str(RANKS), str(deadline_s), hosts[rank], *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        addresses = [line(rank) for rank in ranks]
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(" ".join(addresses) + "\n")
            rank.stdin.flush()
        assert [line(rank) for rank in ranks] == ["running"] * RANKS
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("attempt", range(3))
@TRANSPORTS
def test_survivors_of_a_kill_name_the_dead(transport: str, attempt: int) -> None:
    with job(30.0, transport) as ranks:
        ranks[VICTIM].send_signal(signal.SIGKILL)
        survivors = [rank for index, rank in enumerate(ranks) if index != VICTIM]
        reports = [json.loads(line(rank)) for rank in survivors]
        for report in reports:
            assert f"rank {VICTIM} died" in report["error"]
            assert report["after_s"] < 10.0
            assert report["descriptors_after"] == report["descriptors_before"]
        assert [rank.wait(10) for rank in survivors] == [0] * (RANKS - 1)
    for report in reports:
        with pytest.raises(ProcessLookupError):
            os.kill(report["pid"], 0)


@pytest.mark.timeout(90)
@TRANSPORTS
def test_a_killed_rank_with_children_is_noticed_at_once(transport: str) -> None:
    # A forked child used to hold on to its parent's sockets: no peer saw the connection end.
    with job(30.0, "with a child", transport) as ranks:
        ranks[VICTIM].send_signal(signal.SIGKILL)
        for index, rank in enumerate(ranks):
            if index != VICTIM:
                report = json.loads(line(rank))
                assert f"rank {VICTIM} died" in report["error"]
                assert report["after_s"] < 4.0


@pytest.mark.timeout(90)
@TRANSPORTS
def test_a_stopped_rank_is_named_by_every_survivor_at_the_deadline(transport: str) -> None:
    # Survivors used to name the neighbour that they waited for, which only waited itself.
    with job(3.0, transport) as ranks:
        ranks[VICTIM].send_signal(signal.SIGSTOP)
        for index, rank in enumerate(ranks):
            if index == VICTIM:
                continue
            report = json.loads(line(rank))
            assert "ran out of time" in report["error"]
            assert f"rank {VICTIM} has not answered for" in report["error"]
            assert report["after_s"] < 10.0


@pytest.mark.timeout(90)
@TRANSPORTS
def test_a_rank_that_is_continued_before_the_deadline_goes_on(transport: str) -> None:
    with job(60.0, "twenty rounds", transport) as ranks:
        ranks[VICTIM].send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # some heartbeats
        ranks[VICTIM].send_signal(signal.SIGCONT)
        for rank in ranks:
            assert json.loads(line(rank))["error"] == ""


@pytest.mark.timeout(120)
def test_all_sides_of_a_partition_run_into_the_deadline() -> None:
    if reason := network.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    examples = Path(__file__).parents[2] / "examples"
    with Testbed.up(TestbedSpec.load(examples / "testbed-2x2.toml"), fallback=False) as testbed:
        hosts = testbed.hosts

        def there(rank: int, argv: list[str], **options: Any) -> "subprocess.Popen[str]":
            return testbed.popen(hosts[rank].name, [sys.executable, *argv], **options)

        with job(4.0, start=there, hosts=[host.address for host in hosts]) as ranks:
            cut = ["sh", "-c", "ip link set dev $(ls /sys/class/net | grep -v lo) down"]
            assert testbed.popen(hosts[VICTIM].name, cut).wait(10) == 0
            for index, rank in enumerate(ranks):
                report = json.loads(line(rank))
                # the one that was cut off hears of no abort; the others of the first deadline
                assert "ran out of time" in report["error"], (index, report)
                assert "collective" in report["error"]
                assert "step" in report["error"]
                assert report["after_s"] < 15.0
                assert report["descriptors_after"] == report["descriptors_before"]
