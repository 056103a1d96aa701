"""Agreement on the incarnation of a group: over torch's stores, with ranks as threads.

The bug: every rank counted the groups it had made under a name. After destroy and init, a group of
that name with other members was a first one to some ranks and a second one to others, and each
waited for the others' rendezvous until its timeout.
"""

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from headrace.collectives.run import incarnation
from headrace.collectives.run.incarnation import Attempt, RankText, RoundsState
from headrace.errors import CommunicationError
from headrace.job.store import describe_store
from tests.conformance.launch import outputs, ranks
from tests.waiting import ENDLESS_S, HANG_S

FRESH = itertools.count()
JOB = Path(__file__).parent / "torch" / "regroup_job.py"

STORES: dict[str, Callable[[Path], Any]] = {
    "hash": lambda _: dist.HashStore(),
    "file": lambda folder: dist.FileStore(str(folder / "store"), 1),
    "tcp": lambda _: dist.TCPStore("localhost", 0, 1, True),
    "older tcp": lambda _: dist.TCPStore("localhost", 0, 1, True, use_libuv=False),
    "prefix": lambda _: dist.PrefixStore("a", dist.PrefixStore("b", dist.HashStore())),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return STORES[request.param](tmp_path)


def connection(store: Any) -> Any:
    """A TCP store's connection is for one thread at a time."""
    return store.clone() if isinstance(store, dist.TCPStore) else store


def agreed(
    store: Any, rank: int, members: Sequence[int], timeout_s: float
) -> incarnation.Incarnation:
    """Make the group, and check that each text comes from the rank that it names."""
    expected = [f"here is {peer}" for peer in range(len(members))]

    def acknowledge(arrivals: Sequence[str]) -> str:
        assert list(arrivals) == expected
        return f"{rank} knows of {len(arrivals)}"

    result = Attempt(store, rank, members, timeout_s).agree(f"here is {rank}", acknowledge)
    size = len(members)
    assert result.acknowledgements == [f"{peer} knows of {size}" for peer in range(size)]
    return result


def attempt(store: Any, rank: int, members: Sequence[int], timeout_s: float = ENDLESS_S) -> Any:
    """Make the group: its part of the store, or what was raised."""
    try:
        return agreed(connection(store), rank, members, timeout_s).store
    except CommunicationError as error:
        return error


def together(store: Any, members: Sequence[int], whose: Sequence[int] | None = None) -> list[str]:
    """Have all `members` make the group; the names of their parts of the store."""
    places = range(len(members)) if whose is None else whose
    with ThreadPoolExecutor(len(members)) as pool:
        parts = list(pool.map(lambda rank: attempt(store, rank, members), places))
    return [name(part) for part in parts]


def name(part: Any) -> str:
    """The same for one part of the store, another for another."""
    assert not isinstance(part, Exception), part
    if not part.check(["name"]):
        part.set("name", str(next(FRESH)))
    return part.get("name").decode()


def test_a_group_made_again_has_a_part_of_its_own(store: Any) -> None:
    names = [together(store, [0, 1, 2]) for _ in range(4)]
    assert all(len(set(found)) == 1 for found in names)
    assert len({found[0] for found in names}) == 4


def test_other_members_under_the_same_name(store: Any) -> None:
    first = together(store, [0])
    second = together(store, [0, 1])
    third = together(store, [1, 0])
    fourth = together(store, [0, 1])
    assert len({*first, *second, *third, *fourth}) == 4
    assert len(set(second)) == len(set(third)) == len(set(fourth)) == 1


def test_an_attempt_that_was_given_up_is_not_taken_for_the_next(store: Any) -> None:
    error = attempt(store, 1, [0, 1, 2], 0.2)
    assert isinstance(error, CommunicationError)
    assert "ranks [0, 2] did not reach the rendezvous within 0.2 s" in str(error)
    error = attempt(store, 0, [0, 1, 2], 0.2)
    assert "ranks [2] did not reach" in str(error)
    assert len(set(together(store, [0, 1, 2]))) == 1


def test_a_rank_that_died_after_its_arrival_is_waited_for() -> None:
    """Ranks 0 and 2 may not begin with what the dead rank 1 left, but with its successor."""
    store = dist.HashStore()
    attempt(store, 1, [0, 1, 2], 0.05)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(attempt, store, rank, [0, 1, 2]) for rank in (0, 2)]
        rounds = dist.PrefixStore("headrace/" + incarnation.digest_of([0, 1, 2]), store)
        acknowledgements = ["round/1/0", "round/1/2"]
        rounds.wait(acknowledgements, timedelta(seconds=HANG_S))
        assert not any(future.done() for future in waiting)
        successor = pool.submit(attempt, store, 1, [0, 1, 2])
        parts = [name(future.result(HANG_S)) for future in (*waiting, successor)]
    assert len(set(parts)) == 1


def test_a_rank_that_made_more_attempts_than_others_is_no_obstacle() -> None:
    store = dist.HashStore()
    for _ in range(3):
        attempt(store, 0, [0, 1], 0.02)
    together(store, [0, 1])
    for _ in range(3):
        attempt(store, 1, [0, 1], 0.02)
    assert len(set(together(store, [0, 1]))) == 1


def test_incarnations_never_mix() -> None:
    """All orders of arrivals, deaths and lives: agreement, and one attempt of every rank in each.

    Model: ranks write to their places in rounds, one at a time at random; attempts end at any
    point, and begin to read at any round that an incarnation ended before.
    """
    for seed in range(60):
        random_ = random.Random(seed)
        ranks = random_.randint(1, 4)
        written: dict[tuple[int, int], RankText] = {}
        starts = [0]
        agreed: dict[int, dict[int, str]] = {}  # name -> rank -> attempt
        fresh = itertools.count()
        attempts: dict[int, tuple[RoundsState, str]] = {}
        numbers: dict[int, int] = {}
        for turn in itertools.count():
            deadly = turn < 1000
            rank = random_.randrange(ranks)
            if rank not in attempts or (deadly and random_.random() < 0.02):
                attempts[rank] = RoundsState(), f"a{next(fresh)}"
                numbers[rank] = random_.choice(starts)
            state, mine = attempts[rank]
            number = numbers[rank]
            entry = RankText(not state.may_acknowledge(rank, mine), mine, "")
            written.setdefault((number, rank), entry)
            if any((number, peer) not in written for peer in range(ranks)):
                continue
            state.apply([written[number, peer] for peer in range(ranks)])
            numbers[rank] += 1
            if not state.acknowledgements or not state.includes(rank, mine):
                continue
            starts.append(numbers[rank])
            writers = {peer: written[number, peer].attempt for peer in range(ranks)}
            assert writers == state.attempts, "each attempt acknowledged its own arrival"
            members = agreed.setdefault(number, dict(state.attempts))
            assert members == state.attempts, "two incarnations mixed"
            del attempts[rank]
            if not deadly and not attempts:  # those that are left at the end all succeed
                break
        taken = [attempt for members in agreed.values() for attempt in members.values()]
        assert len(taken) == len(set(taken)), "an attempt is in one incarnation only"


def test_a_rank_that_is_replaced_changes_what_the_others_acknowledge() -> None:
    """Texts of dead attempts are replaced by those of their successors."""
    store = dist.HashStore()
    texts: dict[int, list[list[str]]] = {0: [], 1: []}

    def act(rank: int, arrival: str) -> Sequence[str]:
        def acknowledge(arrivals: Sequence[str]) -> str:
            texts[rank].append(list(arrivals))
            return " ".join(arrivals)

        return Attempt(store, rank, [0, 1], ENDLESS_S).agree(arrival, acknowledge).acknowledgements

    with pytest.raises(CommunicationError):
        Attempt(store, 1, [0, 1], 0.05).agree("dead", " ".join)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(act, 0, "zero")
        rounds = dist.PrefixStore("headrace/" + incarnation.digest_of([0, 1]), store)
        rounds.wait(["round/1/0"], timedelta(seconds=HANG_S))
        second = pool.submit(act, 1, "successor")
        assert first.result(HANG_S) == second.result(HANG_S) == ["zero successor"] * 2
    assert texts == {0: [["zero", "dead"], ["zero", "successor"]], 1: [["zero", "successor"]]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("init", ["store", "file"])
def test_new_group_after_destroy_and_init(init: str, tmp_path: Path) -> None:
    with ranks(2, JOB, init, str(tmp_path / "store")) as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts


STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""


def test_a_store_that_ends_is_named_and_no_rank_blamed() -> None:
    """The ranks that had not come were blamed for what the end of the store's process did."""
    server = subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        store = dist.TCPStore("127.0.0.1", port, 2, False)
        assert describe_store(dist.PrefixStore("a", store)) == f"the store at 127.0.0.1:{port}"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(attempt, store, 0, [0, 1])
            rounds = dist.PrefixStore("headrace/" + incarnation.digest_of([0, 1]), store.clone())
            rounds.wait(["round/0/0"], timedelta(seconds=HANG_S))
            server.kill()
            error = waiting.result(HANG_S)
        for found in (error, attempt_on_dead(store)):
            assert isinstance(found, CommunicationError)
            assert f"the store at 127.0.0.1:{port} does not answer" in str(found)
            assert "ranks [1]" not in str(found)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def attempt_on_dead(store: Any) -> Any:
    with pytest.raises(CommunicationError) as raised:
        agreed(store, 0, [0, 1], 5)
    return raised.value


class Counting(dist.Store):
    """A store that counts the operations of one rank: each is a round trip."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.waits = 0
        self.others = 0
        self._store = store

    def set(self, key: str, value: str) -> None:
        self.others += 1
        self._store.set(key, value)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.others += 1
        return self._store.compare_set(key, expected, desired)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.others += 1
        return self._store.multi_get(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=ENDLESS_S)) -> None:
        self.waits += 1
        self._store.wait(keys, timeout)


def test_ranks_wait_twice_however_many_they_are() -> None:
    """Making a group took 6 times as long as Gloo takes.

    A rank waited for the entries of the other ranks one after the other, so that the time to make a
    group grew with its size. It waits once for all arrivals and once for all acknowledgements; and
    wrote each entry where all ranks wrote theirs, to the first place that was free.
    """
    size = 8
    shared = dist.HashStore()
    stores = [Counting(shared) for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda rank: agreed(stores[rank], rank, range(size), ENDLESS_S), range(size)))
    assert max(store.waits for store in stores) <= 2, [store.waits for store in stores]
    assert max(store.others for store in stores) <= 8, [store.others for store in stores]
