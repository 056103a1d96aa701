"""Rendezvous of ranks: over an in-memory store, with ranks as threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from headrace.collectives.run.rendezvous import Rendezvous, _chosen
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, InputError
from headrace.executor.connect.addresses import addresses_towards, is_loopback
from headrace.job.store import monitored_barrier
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


def test_every_rank_gets_the_secret_and_the_hosts() -> None:
    configs = together(3, lambda r, s: Rendezvous(s, r, 3, HANG_S).agree(DEFAULTS))
    assert {config.secret for config in configs} == {configs[0].secret}
    assert len(configs[0].secret) == 32
    assert all(config.rank_host == (0, 0, 0) for config in configs)
    assert all(config.host == "127.0.0.1" for config in configs)


class Keeping:
    """A store that notes every key that is written and cannot say which keys it holds."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.written: set[str] = set()

    def set(self, key: str, value: str) -> None:
        self.written.add(key)
        self._store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_the_secret_is_gone_from_the_store_once_all_are_connected(
    kind: str, tmp_path: Path
) -> None:
    """It stayed for the life of the store, for any process that reaches it to read."""
    store = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "tcp": lambda: dist.TCPStore("localhost", 0, 1, True),
    }[kind]()
    parts = [
        Keeping(dist.PrefixStore("own", store.clone() if kind == "tcp" else store))
        for _ in range(2)
    ]

    def act(rank: int, _: Any) -> str:
        rendezvous = Rendezvous(parts[rank], rank, 2, 20)
        config = rendezvous.agree(DEFAULTS)
        rendezvous.addresses("x")  # as late as a group is connected: all have read it
        rendezvous.forget_secret()
        return config.secret

    secrets = together(2, act)
    assert len(set(secrets)) == 1
    kept = [key for key in parts[0].written | parts[1].written if store.check([f"own/{key}"])]
    assert kept
    for key in kept:
        assert secrets[0].encode() not in store.get(f"own/{key}")
    assert len(kept) == len(parts[0].written | parts[1].written) - 1


def test_a_store_that_cannot_delete_keeps_the_secret_without_an_error() -> None:
    class Fixed(Keeping):
        def delete_key(self, _key: str) -> bool:
            raise NotImplementedError

    rendezvous = Rendezvous(Fixed(dist.HashStore()), 0, 1, 20)
    rendezvous.agree(DEFAULTS)
    rendezvous.forget_secret()


def test_addresses_come_by_rank() -> None:
    found = together(3, lambda r, s: Rendezvous(s, r, 3, HANG_S).addresses(f"10.0.0.{r}:5"))
    assert found == [["10.0.0.0:5", "10.0.0.1:5", "10.0.0.2:5"]] * 3


def test_different_plan_books_are_an_error_that_names_the_ranks() -> None:
    digests = ["a" * 64, "b" * 64, "a" * 64, ""]
    errors = together(
        4, lambda r, s: Rendezvous(s, r, 4, 20).agree(DEFAULTS, book_digest=digests[r])
    )
    for error in errors:
        assert isinstance(error, InputError)
        for words in ("ranks 0, 2 have aaaa", "rank 1 has bbbb", "rank 3 has none"):
            assert words in str(error)


def test_tls_on_some_ranks_only_is_an_error_that_names_them() -> None:
    def act(rank: int, store: Any, wanted: list[bool]) -> Any:
        return Rendezvous(store, rank, 3, 20).agree(CollectiveSettings(tls=wanted[rank]))

    for error in together(3, lambda r, s: act(r, s, [True, False, True])):
        assert isinstance(error, InputError)
        assert "TLS of ranks differ: ranks 0, 2 have TLS; rank 1 has no TLS" in str(error)
    for all_ranks in (True, False):
        configs = together(3, lambda r, s, wanted=all_ranks: act(r, s, [wanted] * 3))
        assert [config.tls for config in configs] == [all_ranks] * 3


def test_missing_ranks_are_named() -> None:
    def act(rank: int, store: Any) -> Any:
        return None if rank == 1 else Rendezvous(store, rank, 3, STALL_S).addresses("x")

    first, _, last = together(3, act)
    for error in (first, last):
        assert isinstance(error, CommunicationError)
        assert "ranks [1] did not reach" in str(error)


def test_an_unknown_interface_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"HEADRACE_SOCKET_IFNAME is 'nosuch0'.*\blo\b"):
        Rendezvous(dist.HashStore(), 0, 1, 5).agree(CollectiveSettings(socket_interface="nosuch0"))


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_monitored_barrier_names_missing_ranks(all_ranks: bool) -> None:
    def act(rank: int, store: Any) -> None:
        if rank not in (1, 3):
            limit = timedelta(seconds=STALL_S)
            monitored_barrier(store, rank, 4, 1, limit, all_ranks=all_ranks)

    results = together(4, act)
    for rank in (0, 2):
        assert isinstance(results[rank], CommunicationError)
        text = f"Rank{'s 1, 3' if all_ranks else ' 1'} failed to pass monitoredBarrier in"
        assert text in str(results[rank])
    assert "Rank 2 successfully reached monitoredBarrier, but received" in str(results[2])


@pytest.mark.parametrize("present", [False, True])
def test_a_monitored_barrier_of_no_timeout_takes_the_ranks_that_are_there(present: bool) -> None:
    # A timeout of zero was taken for "not set", so for the group's, of minutes.
    store = dist.HashStore()
    if present:
        store.set("monitored_barrier/1/1", "here")
        monitored_barrier(store, 0, 2, 1, timedelta(0), all_ranks=False)
        return
    with pytest.raises(CommunicationError, match="^Rank 0 timed out in monitoredBarrier after 0 s"):
        monitored_barrier(store, 0, 2, 1, timedelta(0), all_ranks=False)


def test_a_monitored_barrier_of_all_ranks_is_silent() -> None:
    limit = timedelta(seconds=HANG_S)
    act = lambda r, s: monitored_barrier(s, r, 3, 1, limit, all_ranks=True)  # noqa: E731
    assert together(3, act) == [None] * 3


def test_the_rank_that_asks_for_the_most_channels_gets_them() -> None:
    configs = together(
        3,
        lambda r, s: Rendezvous(s, r, 3, HANG_S).agree(
            CollectiveSettings(channels=(1, 1, 2)[r]), channels=(1, 4, 1)[r]
        ),
    )
    assert [config.channels for config in configs] == [4] * 3


def test_the_way_to_the_store_is_found_behind_all_prefixes() -> None:
    store = dist.TCPStore("localhost", 0, 1, True)
    behind = dist.PrefixStore("own", dist.PrefixStore("default_pg", store))
    config = Rendezvous(behind, 0, 1, 5).agree(DEFAULTS)
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
