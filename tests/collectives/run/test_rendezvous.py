"""Rendezvous of ranks: over an in-memory store, with ranks as threads."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from headrace.collectives.run.incarnation import digest_of
from headrace.collectives.run.offers import GroupConfig, _chosen, own_offer
from headrace.collectives.run.rendezvous import (
    Joined,
    Rendezvous,
    _Listening,
    allgather_through_store,
)
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, InputError
from headrace.executor.connect.addresses import addresses_towards, is_loopback
from tests.waiting import HANG_S, STALL_S

DEFAULTS = CollectiveSettings()


def together(count: int, act: Callable[[int, Any], Any]) -> list[Any]:
    """Run `act(rank, store)` for every rank at once: the results, or what was raised."""
    store = dist.HashStore()

    def guarded(rank: int) -> Any:
        try:
            return act(rank, store)
        except Exception as error:  # handed to the test
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(guarded, range(count)))


class Unconnected:
    """An executor that has an address, and opens no connections."""

    def __init__(self, config: GroupConfig, rank: int, error: BaseException | None = None) -> None:
        self.config = config
        self.address = f"10.0.0.{rank}:5"
        self.connected: Sequence[str] = ()
        self.closed = 0
        self._error = error

    def connect(
        self, addresses: Sequence[str], deadline_s: float, check: Callable[[], None]
    ) -> None:
        if self._error is not None:
            raise self._error
        self.connected = addresses

    def close(self) -> None:
        self.closed += 1


class Waiting(Unconnected):
    """One that waits for another rank, until that fails."""

    def connect(
        self, addresses: Sequence[str], deadline_s: float, check: Callable[[], None]
    ) -> None:
        while self._error is None:
            check()
        raise self._error


def join(
    rank: int,
    store: Any,
    ranks: int,
    settings: CollectiveSettings = DEFAULTS,
    limit_s: float = HANG_S,
    **options: Any,
) -> Joined:
    def make(config: GroupConfig) -> Any:
        return Unconnected(config, rank)

    return Rendezvous(store, rank, range(ranks), limit_s).join(settings, make, **options)


def test_every_rank_gets_the_secret_the_hosts_and_the_addresses_by_rank() -> None:
    results: list[Joined] = together(3, lambda r, s: join(r, s, 3))
    configs = [joined.config for joined in results]
    assert {config.secret for config in configs} == {configs[0].secret}
    assert len(configs[0].secret) == 32
    assert all(config.rank_host == (0, 0, 0) for config in configs)
    assert all(config.host == "127.0.0.1" for config in configs)
    for joined in results:
        assert joined.addresses == ["10.0.0.0:5", "10.0.0.1:5", "10.0.0.2:5"]
        assert joined.executor.connected == joined.addresses
        assert joined.executor.closed == 0


class Keeping:
    """A store that notes every key that is written, instead of a prefix."""

    def __init__(self, store: Any, written: set[str]) -> None:
        self._store = store
        self.written = written

    def set(self, key: str, value: str) -> None:
        self.written.add(key)
        self._store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_the_secret_is_gone_from_the_store_once_all_are_connected(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed for the life of the store, for any process that reaches it to read."""
    store = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "tcp": lambda: dist.TCPStore("localhost", 0, 1, True),
    }[kind]()
    own = [store.clone() if kind == "tcp" else store for _ in range(2)]
    written: set[str] = set()
    monkeypatch.setattr(
        "torch._C._distributed_c10d.PrefixStore",
        lambda _prefix, store: Keeping(store, written),
    )
    [first, second] = together(2, lambda r, _: join(r, own[r], 2))
    assert first.config.secret == second.config.secret
    assert {"round/0/0", "round/0/1", "round/1/0", "round/1/1"} <= written
    for key in written:
        assert first.config.secret.encode() not in store.get(key)


def test_ranks_of_different_versions_are_named() -> None:
    """An offer of other fields ended in a TypeError."""
    offer = own_offer(dist.HashStore(), 2, DEFAULTS)
    listening = _Listening(0, lambda config: Unconnected(config, 0))
    arrivals = [["secret", "0.1.0", offer], ["", "0.2.0", [*offer, "another field"]]]
    assert "failed" in json.loads(listening.begin([json.dumps(row) for row in arrivals]))
    words = "versions of headrace of ranks differ: rank 0 has 0.1.0; rank 1 has 0.2.0. Install one"
    with pytest.raises(InputError, match=words):
        listening.result()


def test_a_rank_that_cannot_listen_fails_all_with_its_reason() -> None:
    def act(rank: int, store: Any) -> Any:
        def make(config: GroupConfig) -> Any:
            if rank == 1:
                raise CommunicationError("cannot listen on 127.0.0.1: no luck")
            executors.append(Unconnected(config, rank))
            return executors[-1]

        return Rendezvous(store, rank, range(3), HANG_S).join(DEFAULTS, make)

    executors: list[Unconnected] = []
    first, second, third = together(3, act)
    assert str(second) == "cannot listen on 127.0.0.1: no luck"
    for rank, error in ((0, first), (2, third)):
        assert isinstance(error, CommunicationError)
        assert str(error) == f"rank {rank}: rendezvous of 3 ranks: rank 1 failed: {second}"
    assert [executor.closed for executor in executors] == [1, 1]


def test_a_rank_that_cannot_connect_fails_those_that_wait_for_it() -> None:
    def act(rank: int, store: Any) -> Any:
        error = None if rank == 0 else CommunicationError("no way")
        return Rendezvous(store, rank, range(2), HANG_S).join(
            DEFAULTS, lambda config: Waiting(config, rank, error)
        )

    first, second = together(2, act)
    assert str(second) == "no way"
    assert str(first) == "rank 0: rendezvous of 2 ranks: rank 1 failed: no way"


def test_a_rank_that_is_interrupted_fails_those_that_wait_for_it() -> None:
    def act(rank: int, store: Any) -> Any:
        error = None if rank == 0 else KeyboardInterrupt()
        try:
            return Rendezvous(store, rank, range(2), HANG_S).join(
                DEFAULTS, lambda config: Waiting(config, rank, error)
            )
        except KeyboardInterrupt as interrupt:
            return interrupt

    first, second = together(2, act)
    assert isinstance(second, KeyboardInterrupt)
    assert str(first) == "rank 0: rendezvous of 2 ranks: rank 1 failed: KeyboardInterrupt"


def test_errors_of_an_attempt_that_was_given_up_do_not_reach_the_next() -> None:
    """Its settings are still in the store when the other rank arrives."""
    store = dist.HashStore()
    with pytest.raises(CommunicationError, match=r"ranks \[0\] did not reach the rendezvous"):
        join(1, store, 2, CollectiveSettings(tls=True), 0.05)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, 0, store, 2)
        rounds = dist.PrefixStore("headrace/" + digest_of(range(2)), store)
        rounds.wait(["round/1/0"], timedelta(seconds=HANG_S))
        assert not join(1, store, 2).config.tls
        assert not first.result(HANG_S).config.tls


def test_different_plan_books_are_an_error_that_names_the_ranks() -> None:
    digests = ["a" * 64, "b" * 64, "a" * 64, ""]
    errors = together(4, lambda r, s: join(r, s, 4, book_digest=digests[r]))
    for error in errors:
        assert isinstance(error, InputError)
        for words in ("ranks 0, 2 have aaaa", "rank 1 has bbbb", "rank 3 has none"):
            assert words in str(error)


def test_tls_on_some_ranks_only_is_an_error_that_names_them() -> None:
    def act(rank: int, store: Any, wanted: list[bool]) -> Any:
        return join(rank, store, 3, CollectiveSettings(tls=wanted[rank]))

    for error in together(3, lambda r, s: act(r, s, [True, False, True])):
        assert isinstance(error, InputError)
        assert "TLS of ranks differ: ranks 0, 2 have TLS; rank 1 has no TLS" in str(error)
    for all_ranks in (True, False):
        results = together(3, lambda r, s, wanted=all_ranks: act(r, s, [wanted] * 3))
        assert [joined.config.tls for joined in results] == [all_ranks] * 3


def test_texts_gathered_through_the_store_come_by_rank() -> None:
    def gather(rank: int, store: Any) -> list[str]:
        return allgather_through_store(store, rank, 3, f"rank {rank}", HANG_S)

    assert together(3, gather) == [["rank 0", "rank 1", "rank 2"]] * 3


def test_missing_ranks_are_named() -> None:
    def act(rank: int, store: Any) -> Any:
        return None if rank == 1 else allgather_through_store(store, rank, 3, "x", STALL_S)

    first, _, last = together(3, act)
    for error in (first, last):
        assert isinstance(error, CommunicationError)
        assert "ranks [1] did not reach" in str(error)


def test_an_unknown_interface_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"HEADRACE_SOCKET_IFNAME is 'nosuch0'.*\blo\b"):
        join(0, dist.HashStore(), 1, CollectiveSettings(socket_interface="nosuch0"))


def test_the_rank_that_asks_for_the_most_channels_gets_them() -> None:
    results = together(
        3,
        lambda r, s: join(
            r, s, 3, CollectiveSettings(channels=(1, 1, 2)[r]), channels=(1, 4, 1)[r]
        ),
    )
    assert [joined.config.channels for joined in results] == [4] * 3


def test_the_way_to_the_store_is_found_behind_all_prefixes() -> None:
    store = dist.TCPStore("localhost", 0, 1, True)
    behind = dist.PrefixStore("own", dist.PrefixStore("default_pg", store))
    config = join(0, behind, 1).config
    assert behind.underlying_store.underlying_store.host == "localhost"
    assert config.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("offers", "found"),
    [
        # one host: any address will do, IPv4 first
        ([{6: "::1"}], ["::1"]),
        ([{4: "127.0.0.1", 6: "::1"}] * 2, ["127.0.0.1"] * 2),
        ([{4: "127.0.0.1", 6: "::1"}, {6: "::1"}], ["::1", "::1"]),
        # several hosts: the first family that all have
        ([{4: "10.0.0.1", 6: "fd00::1"}, {4: "10.0.0.2", 6: "fd00::2"}], ["10.0.0.1", "10.0.0.2"]),
        ([{4: "10.0.0.1", 6: "fd00::1"}, {6: "fd00::2"}], ["fd00::1", "fd00::2"]),
        ([{6: "fe80::1%eth0"}, {6: "fe80::2%eth1"}], ["fe80::1%eth0", "fe80::2%eth1"]),
        # loopback is no way to others, of either family
        ([{4: "10.0.0.1", 6: "::1"}, {4: "10.0.0.2", 6: "fd00::2"}], ["10.0.0.1", "10.0.0.2"]),
        ([{4: "127.0.0.1", 6: "fd00::1"}, {4: "10.0.0.2", 6: "fd00::2"}], ["fd00::1", "fd00::2"]),
    ],
)
def test_ranks_listen_on_the_first_family_that_all_have(
    offers: list[dict[int, str]], found: list[str]
) -> None:
    hosts = 1 if any(is_loopback(one) for one in found) else len(offers)
    chosen = [_chosen(offers, rank, hosts=hosts, fixed=False) for rank in range(len(offers))]
    assert chosen == found


def test_a_rank_beside_the_store_takes_the_way_to_the_others() -> None:
    offers = [{4: "127.0.0.1"}, {4: "127.0.0.1"}, {4: "192.0.2.1"}]
    loopback = _chosen([{4: "127.0.0.1"}, {4: "127.0.0.2"}], 0, hosts=2, fixed=True)
    assert loopback == "127.0.0.1", "addresses that were given are meant, as on a testbed"
    own = _chosen(offers, 0, hosts=2, fixed=False)
    assert own == addresses_towards("192.0.2.1").get(4, "127.0.0.1")


def test_ranks_without_a_common_family_are_named() -> None:
    offers = [{4: "10.0.0.1"}, {6: "fd00::2"}, {4: "10.0.0.3", 6: "fd00::3"}]
    words = r"ranks \[1\] have no IPv4 address and ranks \[0\] no IPv6 address"
    with pytest.raises(InputError, match=words):
        _chosen(offers, 0, hosts=3, fixed=True)
    with pytest.raises(InputError, match="every one of them would listen on loopback"):
        _chosen([{4: "127.0.0.1"}, {6: "::1"}], 0, hosts=2, fixed=False)
