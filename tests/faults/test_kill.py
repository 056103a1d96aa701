"""A rank is killed, or stopped, in the middle of a collective."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import _native
from headrace.launch.roles import Role, Roles, Start, start_local
from headrace.testbed import Testbed, TestbedSpec, privileges
from tests.waiting import ENDLESS_S, HANG_S

SAMPLED = pytest.mark.sampled(1)

RANKS = 4
VICTIM = 2
SURVIVORS = (0, 1, 3)
ROUND_S = 10.0
"""A deadline that is to pass; a collective of all ranks takes less on a busy machine."""
WORKER = Path(__file__).with_name("rank.py")


TLS = pytest.param(
    "over tls", marks=pytest.mark.skipif(not _native.has_tls(), reason="built without OpenSSL")
)
TRANSPORTS = pytest.mark.parametrize("transport", ["in memory", "over tcp", TLS])


@dataclass
class Job:
    """Ranks in the middle of their collectives."""

    roles: Roles[int]
    pids: dict[int, int]

    def signal(self, number: signal.Signals) -> None:
        """Send the victim a signal."""
        os.kill(self.pids[VICTIM], number)

    def reports(self, of: Sequence[int] = SURVIVORS) -> list[dict[str, Any]]:
        """The last messages of ranks, in their order; they then end by themselves."""
        found: dict[int, dict[str, Any]] = {}
        ended: dict[int, int | None] = {}
        while not set(of) <= ended.keys():
            rank, message = self.roles.receive(HANG_S)
            if message is None:
                ended[rank] = self.roles.exit_code(rank)
            else:
                assert "descriptors_after" in message, message
                found[rank] = message
        assert [ended[rank] for rank in of] == [0] * len(of)
        return [found[rank] for rank in of]


@contextmanager
def job(
    deadline_s: float,
    *options: str,
    starts: Sequence[Start] = (start_local,) * RANKS,
    hosts: Sequence[str] = ("127.0.0.1",) * RANKS,
) -> Iterator[Job]:
    """Processes that are in the middle of their collectives; all gone afterwards.

    A rank is started at its place of `starts`, and listens on its address of `hosts`.
    """
    roles = {
        rank: Role(
            name=f"rank {rank}",
            argv=[sys.executable, *map(str, (WORKER, rank, RANKS, deadline_s, host)), *options],
            start=start,
        )
        for rank, (start, host) in enumerate(zip(starts, hosts, strict=True))
    }
    with Roles(roles) as started:

        def answers() -> dict[int, dict[str, Any]]:
            found = (started.expect("starting", 60.0) for _ in range(RANKS))
            return dict(each for each in found if each is not None)

        told = answers()
        for rank in range(RANKS):
            started.send(rank, {"addresses": [told[r]["address"] for r in range(RANKS)]})
        assert answers() == {rank: {"running": True} for rank in range(RANKS)}
        yield Job(started, {rank: told[rank]["pid"] for rank in range(RANKS)})


@SAMPLED
@pytest.mark.parametrize("attempt", range(3))
@TRANSPORTS
def test_survivors_of_a_kill_name_the_dead(transport: str, attempt: int) -> None:
    with job(ENDLESS_S, transport) as ranks:
        ranks.signal(signal.SIGKILL)
        reports = ranks.reports()
        for report in reports:
            assert f"rank {VICTIM} died" in report["error"]
            assert report["descriptors_after"] == report["descriptors_before"]
    for report in reports:
        with pytest.raises(ProcessLookupError):
            os.kill(ranks.pids[report["rank"]], 0)


@SAMPLED
@TRANSPORTS
def test_a_killed_rank_with_children_is_noticed_while_they_live(
    transport: str, tmp_path: Path
) -> None:
    # A forked child used to hold on to its parent's sockets: no peer saw the connection end.
    children_live = tmp_path / "children live"
    children_live.touch()
    try:
        with job(ENDLESS_S, f"child:{children_live}", transport) as ranks:
            ranks.signal(signal.SIGKILL)
            for report in ranks.reports():
                assert f"rank {VICTIM} died" in report["error"]
    finally:
        children_live.unlink()


@SAMPLED
@TRANSPORTS
def test_a_stopped_rank_is_named_by_every_survivor_at_the_deadline(transport: str) -> None:
    # Survivors used to name the neighbour that they waited for, which only waited itself.
    with job(ROUND_S, transport) as ranks:
        ranks.signal(signal.SIGSTOP)
        for report in ranks.reports():
            assert "timed out" in report["error"]
            assert f"rank {VICTIM} has not answered for" in report["error"]


@SAMPLED
@TRANSPORTS
def test_a_rank_that_is_continued_before_the_deadline_goes_on(transport: str) -> None:
    with job(ENDLESS_S, "twenty rounds", transport) as ranks:
        ranks.signal(signal.SIGSTOP)
        time.sleep(1.5)  # some heartbeats
        ranks.signal(signal.SIGCONT)
        for report in ranks.reports(range(RANKS)):
            assert report["error"] == ""


@SAMPLED
def test_all_sides_of_a_partition_run_into_the_deadline() -> None:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    examples = Path(__file__).parents[2] / "examples"
    with Testbed.up(TestbedSpec.load(examples / "testbed-2x2.toml"), fallback=False) as testbed:
        hosts = testbed.hosts

        starts = [partial(testbed.popen, host.name) for host in hosts]
        with job(ROUND_S, starts=starts, hosts=[host.address for host in hosts]) as ranks:
            cut = ["sh", "-c", "ip link set dev $(ls /sys/class/net | grep -v lo) down"]
            assert testbed.popen(hosts[VICTIM].name, cut).wait(HANG_S) == 0
            for report in ranks.reports(range(RANKS)):
                # the one that was cut off hears of no abort; the others of the first deadline
                assert "timed out" in report["error"], report
                assert "collective" in report["error"]
                assert "step" in report["error"]
                assert report["descriptors_after"] == report["descriptors_before"]
