"""Measuring on the real executor: ranks as threads, over loopback."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.probes.group_prober import GroupProber, name_hosts
from headrace.collectives.measure.probes.probe import Flow, Manner, Probe
from headrace.collectives.measure.survey import measure_ranks, survey
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor
from headrace.job.load import MachineLoad, busiest
from tests.conformance.groups import each

QUICK = ProbeEffort(tournament_us=2000, quiet_us=3000, sharing_us=2000, most_bytes=1e6)


def together(hosts: Sequence[str], part: Callable[[GroupProber], object]) -> list[object]:
    """Run `part` at every rank, each in a thread of its own; returns results or errors by rank."""
    executors = [
        Executor(rank, len(hosts), secret="hosts", shared_memory=False)
        for rank in range(len(hosts))
    ]
    addresses = [one.address for one in executors]
    results: list[object] = [None] * len(hosts)

    def run(executor: Executor) -> None:
        try:
            executor.connect(addresses, 10.0)
            member = GroupProber(executor, hosts, deadline_s=20.0, idle_timeout_s=40.0)
            results[executor.rank] = part(member)
        except CommunicationError as error:
            results[executor.rank] = error
        finally:
            executor.close()

    each(executors, run)
    return results


@pytest.mark.parametrize(
    ("manner", "chunks", "flow", "repeats"),
    [
        (Manner.AT_ONCE, 4, Flow(1, 2, 200_000), 3),
        # more than any by default: all ranks failed at an array's shape
        (Manner.ONE_AFTER_ANOTHER, 1, Flow(0, 1, 8), 100),
    ],
)
def test_a_probe_is_timed_at_every_rank(
    manner: Manner, chunks: int, flow: Flow, repeats: int
) -> None:
    probe = Probe(ranks=3, manner=manner, chunks=chunks, flows=(flow,), repeats=repeats)

    def part(member: GroupProber) -> object:
        if member.rank:
            return member.follow()
        times = member.measure(probe)
        member.stop()
        return times

    times = together("abc", part)[0]
    assert isinstance(times, np.ndarray), times
    assert times.shape == (3, repeats)
    assert (times > 0).all()


def test_the_leader_gathers_the_loads_of_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(member: GroupProber) -> object:
        load = MachineLoad(seconds=1.0, processors=2, load_average=0.25 * member.rank)
        monkeypatch.setattr(member, "_watch", SimpleNamespace(load=lambda: load))
        if member.rank:
            return member.follow()
        loads = member.loads()
        member.stop()
        return loads

    loads = together("abc", part)[0]
    assert isinstance(loads, list), loads
    assert [load.load_average for load in loads] == [0.0, 0.25, 0.5]
    assert {load.waited_share for load in loads} == {None}
    assert busiest(loads) is loads[2]


def test_measuring_over_loopback_gives_a_profile() -> None:
    hosts = ["a", "a", "b", "c"]

    def part(member: GroupProber) -> object:
        if member.rank:
            return member.follow()
        profile = survey(member, hosts, effort=QUICK)
        member.stop()
        return profile

    profile, *others = together(hosts, part)
    assert others == [False] * 3
    assert not isinstance(profile, CommunicationError), profile
    topology = profile.topology
    assert topology.hosts == ("a", "b", "c")
    assert topology.rank_host == (0, 0, 1, 2)
    assert len(topology.links) == 12
    assert all(link.alpha_us > 0 and link.beta_us_per_mb > 0 for link in topology.links)
    off = ~np.eye(3, dtype=bool)
    for column in ("median_rtt_us", "min_rtt_us", "kernel_rtt_us"):
        assert (profile.matrix(column)[off] > 0).all(), column
    assert (profile.matrix("min_rtt_us") <= profile.matrix("median_rtt_us"))[off].all()


def test_an_error_of_the_leader_alone_ends_measuring_at_all_ranks() -> None:
    """Of what it computes: the others waited for a minute, and a running job failed."""
    followed = threading.Event()

    def fail(what: str, share: float) -> None:
        raise InputError(f"no {what}")

    def part(member: GroupProber) -> object:
        runner = member._runner  # pyright: ignore[reportPrivateUsage]
        try:
            return measure_ranks(runner, ["a", "b"], effort=QUICK, progress=fail)
        except InputError as error:
            assert followed.wait(20), "its connections stay, as those of a job do"
            return error
        finally:
            if member.rank:
                followed.set()

    failed, done = together("ab", part)
    assert isinstance(failed, InputError), failed
    assert done is None


def test_a_rank_that_dies_is_named_with_its_host() -> None:
    hosts = ["alpha", "beta", "gamma"]
    probe = Probe(ranks=3, manner=Manner.AT_ONCE, chunks=4, flows=(Flow(0, 1, 50_000),))

    def part(member: GroupProber) -> object:
        if member.rank == 2:
            return None  # leaves without a word
        if member.rank == 1:
            return member.follow()
        for _ in range(50):
            member.measure(probe)
        return None

    first, second, _ = together(hosts, part)
    assert isinstance(first, CommunicationError)
    assert isinstance(second, CommunicationError)
    assert "host 'gamma'" in str(first)


def test_an_error_names_the_hosts_of_the_ranks_it_blames() -> None:
    text = name_hosts("rank 1: rank 2 hung up", 1, ["a", "b", "c"])
    assert "at rank 1 on host 'b'" in text
    assert text.endswith("(rank 2 is host 'c')")


def test_echoes_are_timed_one_by_one_and_idle_ranks_take_part() -> None:
    echo = Probe(
        ranks=4,
        manner=Manner.ONE_AFTER_ANOTHER,
        chunks=1,
        flows=(Flow(1, 2, 8),),
        repeats=20,
    )
    bulk = Probe(
        ranks=4, manner=Manner.AT_ONCE, chunks=2, flows=(Flow(3, 0, 999), Flow(3, 1, 1)), repeats=3
    )

    def part(member: GroupProber) -> object:
        if member.rank:
            return member.follow()
        times = [member.measure(probe) for probe in (echo, bulk, echo)]
        kernel = member.round_trips()
        member.stop()
        return times, kernel

    (times, kernel), *others = together("abcd", part)  # pyright: ignore[reportGeneralTypeIssues]
    assert others == [False] * 3
    assert [one.shape for one in times] == [(4, 20), (4, 3), (4, 20)]
    assert len(set(times[0][1].tolist())) > 10
    assert (kernel[~np.eye(4, dtype=bool)] > 0).all()
