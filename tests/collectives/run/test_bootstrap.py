"""Jobs that bring no plan book find out the network by themselves."""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from headrace.collectives.demand import Collective
from headrace.collectives.measure.cache import HostId, ProfileCache
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.run import bootstrap as automatic
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor
from headrace.testbed import Testbed, TestbedSpec, rank_environment
from tests.conformance import warm
from tests.conformance.groups import each
from tests.waiting import JOB_S

SAMPLED = pytest.mark.sampled(1)

HOSTS = [HostId(f"10.0.0.{rank}", f"boot-{rank}") for rank in range(3)]
QUICK = replace(automatic.EFFORT, budget_s=3.0, tournament_us=1000, quiet_us=1500, sharing_us=1000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "EFFORT", QUICK)
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs before were other processes."""
    monkeypatch.setattr(automatic, "_books", {})


def job(
    hosts: Sequence[HostId],
    settings: Callable[[int], CollectiveSettings] | CollectiveSettings,
    part: Callable[..., Any] = automatic.found_book,
    store_type: type[HashStore] = HashStore,
) -> list[Any]:
    """Run `found_book` at every rank, each in a thread; returns books or errors by rank."""
    store = store_type()
    store.set_timeout(timedelta(seconds=30))
    executors = [
        Executor(rank, len(hosts), secret="hosts", shared_memory=False)
        for rank in range(len(hosts))
    ]
    addresses = [executor.address for executor in executors]
    results: list[Any] = [None] * len(hosts)

    def run(executor: Executor) -> None:
        rank = executor.rank
        mine = settings if isinstance(settings, CollectiveSettings) else settings(rank)
        try:
            executor.connect(addresses, 10.0)
            results[rank] = part(executor, store, hosts, mine, 30.0)
        except (CommunicationError, InputError) as error:
            results[rank] = error
        finally:
            executor.close()

    each(executors, run)
    return results


@SAMPLED
def test_all_ranks_get_the_book_of_what_was_measured_and_the_next_job_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    settings = CollectiveSettings(measure="auto", cache=tmp_path)
    books = job(HOSTS, settings)
    assert all(isinstance(book, PlanBook) for book in books), books
    assert len({book.digest for book in books}) == 1
    assert books[0].topology.hosts == tuple(host.address for host in HOSTS)
    assert {entry.collective for entry in books[0].entries} >= {Collective.ALLREDUCE}
    assert re.search(r"network measured in .* s: .*hosts.* the job uses .* plans", caplog.text)

    caplog.clear()
    monkeypatch.setattr(automatic, "measure_ranks", never)
    forget(monkeypatch)
    again = job(HOSTS, settings)
    assert [book.digest for book in again] == [books[0].digest] * 3
    assert "known from an earlier job" in caplog.text

    turned = job([HOSTS[2], HOSTS[0], HOSTS[1]], settings)
    assert turned[0].topology.hosts == ("10.0.0.2", "10.0.0.0", "10.0.0.1")

    survivors = job(HOSTS[1:], settings)
    assert survivors[0].topology.hosts == ("10.0.0.1", "10.0.0.2")

    assert automatic.invalidate(books[0], settings, "steps take twice as long as predicted")
    assert not automatic.invalidate(books[0], settings, "again")
    assert ProfileCache(tmp_path).find(HOSTS) is None


def never(*_: object, **__: object) -> None:
    raise AssertionError("the profile in the cache was not used")


def test_measuring_always_does_not_look_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(HOSTS, CollectiveSettings(measure="auto", cache=tmp_path))
    always = CollectiveSettings(measure="always", cache=tmp_path)
    forget(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(ProfileCache, "find", never)
        assert isinstance(job(HOSTS, always)[2], PlanBook)
    monkeypatch.setattr(automatic, "measure_ranks", never)  # the job's next group need not
    assert isinstance(job(HOSTS, always)[2], PlanBook)


def test_later_groups_of_a_job_do_not_measure_where_nothing_can_be_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every group of all ranks measured for 10 s, amid training, without a writable home folder."""
    (tmp_path / "cache").write_text("a file where the folder is to be")
    settings = CollectiveSettings(measure="auto", cache=tmp_path / "cache")
    first = job(HOSTS, settings)
    assert isinstance(first[0], PlanBook), first
    assert "the next job will measure again" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(automatic, "measure_ranks", never)
        assert [book.digest for book in job(HOSTS, settings)] == [first[0].digest] * 3
    measured: list[bool] = []
    monkeypatch.setattr(automatic, "measure_ranks", lambda *_, **__: measured.append(True))
    automatic.invalidate(first[0], settings, "steps take twice as long as predicted")
    job(HOSTS, settings)
    assert measured


class BoundedStore(HashStore):
    """A store that takes no large values, as torch's TCP store."""

    MOST_BYTES = 1000

    def set(self, key: str, value: str | bytes) -> None:
        assert len(value) <= self.MOST_BYTES, f"{key} has {len(value)} bytes"
        super().set(key, value)


def test_a_book_may_be_larger_than_a_value_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was one value, and torch's TCP store drops the connection that sends over 8 MiB."""
    monkeypatch.setattr("headrace.job.store._PART_BYTES", BoundedStore.MOST_BYTES)
    books = job(HOSTS, CollectiveSettings(cache=tmp_path), store_type=BoundedStore)
    assert isinstance(books[0], PlanBook), books
    assert [book.digest for book in books] == [books[0].digest] * 3


def test_rank_0_decides_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "measure_ranks", never)

    def settings(rank: int) -> CollectiveSettings:
        return CollectiveSettings(measure="always" if rank else "off", cache=tmp_path)

    assert job(HOSTS, settings) == [None, None, None]
    assert not list(tmp_path.iterdir())


@SAMPLED
def test_a_corrupt_cache_is_measured_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CollectiveSettings(measure="auto", cache=tmp_path)
    job(HOSTS, settings)
    [path] = (tmp_path / "profiles").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    forget(monkeypatch)
    assert isinstance(job(HOSTS, settings)[1], PlanBook)
    assert "skipped a profile in the cache" in caplog.text
    assert ProfileCache(tmp_path).find(HOSTS) is not None


def test_without_plans_templates_serve_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InputError("no plan today")

    monkeypatch.setattr(automatic, "quick_book", fail)
    assert job(HOSTS, CollectiveSettings(cache=tmp_path)) == [None, None, None]
    assert "the job uses templates: no plan today" in caplog.text


def test_an_error_of_planning_does_not_keep_the_other_ranks_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any other kind than headrace's own, it left them to the deadline of the group."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    def found(*arguments: Any) -> Any:
        try:
            return automatic.found_book(*arguments)
        except MemoryError:
            return "no memory"

    monkeypatch.setattr(automatic, "quick_book", fail)
    settings = CollectiveSettings(cache=tmp_path)
    assert job(HOSTS, settings, found) == ["no memory", None, None]


def test_a_host_that_is_lost_while_measuring_is_named_at_every_rank(tmp_path: Path) -> None:
    def part(executor: Executor, *arguments: Any) -> Any:
        if executor.rank == 2:
            raise CommunicationError("died")
        return automatic.found_book(executor, *arguments)

    first, second, _ = job(HOSTS, CollectiveSettings(cache=tmp_path), part)
    for error in (first, second):
        assert isinstance(error, CommunicationError)
        assert "'10.0.0.2'" in str(error)


SPEC = TestbedSpec.from_table(
    {
        "defaults": {"host_rate": "400mbit", "uplink_rate": "100mbit"},
        "racks": [{"hosts": 2}, {"hosts": 2}],
    }
)
JOB = Path(__file__).with_name("automatic_job.py")


def start(testbed: Testbed, order: Sequence[int], cache: Path, **environment: str) -> str:
    """Run the job on hosts in this order; returns what its ranks said."""
    ranks: list[subprocess.Popen[str]] = [
        testbed.popen(
            testbed.hosts[host].name,
            warm.command(str(JOB), "6"),
            env={
                **warm.environment(),
                **rank_environment(testbed, order, rank),
                "HEADRACE_MEASURE": "auto",
                "HEADRACE_ADAPT": "off",
                "HEADRACE_CACHE": str(cache),
                "HEADRACE_LOG_LEVEL": "info",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(order)
    ]
    said = "".join(rank.communicate(timeout=JOB_S)[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0] * len(order), said
    return said


@pytest.mark.sampled(1, of="whole jobs")
def test_a_job_on_a_testbed_measures_it_once_and_plans_by_that(tmp_path: Path) -> None:
    """Detected racks are a bar of the benchmark `network`: on a busy machine they differ."""
    with Testbed.up(SPEC, fallback=os.geteuid() != 0 or None) as testbed:
        first = start(testbed, [2, 0, 3, 1], tmp_path)
        [summary] = re.findall(r"network measured in [\d.]+ s: (.*); the job uses", first)
        assert len(set(re.findall(r"uses (\w+) by plan book", first))) == 1, first
        assert first.count("by plan book") == 4
        second = start(testbed, [0, 1, 2, 3], tmp_path)
        [known] = re.findall(r"network known from an earlier job: (.*); the job uses", second)
        assert sorted(known.split(", ")) == sorted(summary.split(", "))
        pinned = start(testbed, [0, 1], tmp_path, HEADRACE_MEASURE="off")
        assert pinned.count("by template") == 2
