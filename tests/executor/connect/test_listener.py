"""Connecting the ranks of a group: ranks as threads."""

import asyncio
import itertools
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import CommunicationError, InputError
from headrace.executor.connect import listener as listener_module
from headrace.executor.connect.handshake import CONTROL_CHANNEL
from headrace.executor.connect.handshake_loop import Loop
from headrace.executor.connect.listener import PeerConnection
from tests.executor.connect.connecting import (
    SECRET,
    all_pairs,
    check,
    close,
    listener,
    no_descriptor_is_left,  # noqa: F401 - a fixture
    no_pairs,
    together,
)
from tests.waiting import ENDLESS_S, HANG_S, STALL_S, with_longer_deadlines

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("shared", [True, False])
def test_every_pair_is_connected_on_every_channel(ranks: int, shared: bool) -> None:
    outcomes = together([listener(r, ranks, shared_memory=shared) for r in range(ranks)])
    check(outcomes, all_pairs if shared else no_pairs)
    close(outcomes)


@pytest.mark.parametrize("shared", [True, False])
def test_ipv6(shared: bool) -> None:
    try:
        group = [listener(r, 3, "::1", shared_memory=shared) for r in range(3)]
    except CommunicationError:
        pytest.skip("no IPv6 here")
    assert all(one.address.startswith("[::1]:") for one in group)
    outcomes = together(group)
    check(outcomes, all_pairs if shared else no_pairs)
    close(outcomes)


def test_one_side_without_shared_memory_is_enough_for_tcp() -> None:
    outcomes = together([listener(r, 4, shared_memory=r != 2) for r in range(4)])
    check(outcomes, lambda rank, peer: 2 not in (rank, peer))
    close(outcomes)


def test_options_of_tcp_connections() -> None:
    """Firewalls forgot connections of data that were silent for minutes, and dropped what came."""
    outcomes = together([listener(r, 2, shared_memory=False) for r in range(2)])
    for links in outcomes:
        assert isinstance(links, list)
        for link in links:
            with socket.socket(fileno=os.dup(link.fd)) as sock:
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                idle_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert idle_s == (5 if link.channel == CONTROL_CHANNEL else 60)
    close(outcomes)


def test_inside_a_running_event_loop() -> None:
    group = [listener(r, 2) for r in range(2)]
    addresses = [one.address for one in group]

    async def notebook() -> list[PeerConnection]:
        return group[1].connect(addresses, ENDLESS_S)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(group[0].connect, addresses, ENDLESS_S)
        outcomes = [asyncio.run(notebook()), first.result()]
    check(outcomes[::-1], all_pairs)
    close(outcomes)


def test_ranks_that_do_not_come_are_named() -> None:
    def check_errors(deadline_s: float) -> None:
        group = [listener(r, 4) for r in range(2)]
        addresses = [one.address for one in group] + ["127.0.0.1:1", "127.0.0.1:2"]
        outcomes = together(group, deadline_s=deadline_s, addresses=addresses)
        for rank, error in enumerate(outcomes):
            assert isinstance(error, CommunicationError)
            assert str(error) == (
                f"rank {rank} is not connected after {deadline_s:g} s: "
                "rank 2, rank 3 did not connect"
            )

    with_longer_deadlines(check_errors)


def test_ranks_that_cannot_be_reached_are_named_with_the_reason() -> None:
    def check_error(deadline_s: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            last = listener(2, 3)
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            addresses = ["127.0.0.1:1", address, last.address]
            (error,) = together([last], deadline_s, addresses=addresses)
        assert str(error) == (
            f"rank 2 is not connected after {deadline_s:g} s: rank 0 at 127.0.0.1:1 could not be "
            f"reached: Connection refused; rank 1 at {address} did not answer"
        )

    with_longer_deadlines(check_error)


def test_a_wait_for_other_hosts_is_warned_of_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a firewall nothing was said for the whole deadline, half an hour by default."""
    monkeypatch.setattr(listener_module, "_WARN_S", 0.0)
    outcomes = together([listener(1, 2)], STALL_S / 10, addresses=["127.0.0.2:1", "127.0.0.1:2"])
    (warning,) = (m for m in caplog.messages if "not connected" in m)
    assert warning.startswith("rank 1 is not connected yet: rank 0 at 127.0.0.2:1 ")
    for text in (warning, str(outcomes[0])):
        assert "a firewall has to let them connect" in text
        assert "HEADRACE_SOCKET_IFNAME" in text


@pytest.mark.parametrize("shared", [True, False])
def test_a_rank_with_another_secret_stays_out_and_is_named(shared: bool) -> None:
    def check_errors(deadline_s: float) -> None:
        group = [
            listener(r, 4, shared_memory=shared, secret=b"another" if r == 2 else SECRET)
            for r in range(4)
        ]
        outcomes = together(group, deadline_s=deadline_s)
        messages = [str(error) for error in outcomes if isinstance(error, CommunicationError)]
        assert len(messages) == 4
        for text in messages[:2]:
            assert "s: rank 2 did not connect (connections rejected:" in text
            assert "does not know this job's secret" in text
        at = [one.address for one in group]
        assert (
            f"rank 0 at {at[0]}, rank 1 at {at[1]} failed the handshake: it closed the connection"
            in messages[2]
        )
        assert "; rank 3 did not connect" in messages[2]
        assert f"s: rank 2 at {at[2]} failed the handshake: it closed the connection" in messages[3]

    with_longer_deadlines(check_errors)


def test_interrupts_end_it_and_close_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    me, turn, ticks = threading.current_thread(), Loop.turn, itertools.count()

    def interrupted(loop: Loop, longest_s: float) -> None:
        turn(loop, longest_s)
        if threading.current_thread() is me and next(ticks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "turn", interrupted)
    group = [listener(r, 3) for r in range(3)]
    addresses = [one.address for one in group]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(group[0].connect, addresses, 0.8)
        with pytest.raises(KeyboardInterrupt):
            group[2].connect(addresses, ENDLESS_S)
        assert isinstance(other.exception(), CommunicationError)
    group[1].close()


def test_control_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    me = threading.current_thread()
    if me is not threading.main_thread() or me.ident is None:
        pytest.skip("signals come to the main thread")
    lonely = listener(0, 2)
    turn, waits = Loop.turn, threading.Event()

    def noted(loop: Loop, longest_s: float) -> None:
        waits.set()
        turn(loop, longest_s)

    def interrupt(thread: int) -> None:
        waits.wait(HANG_S)
        signal.pthread_kill(thread, signal.SIGINT)

    monkeypatch.setattr(Loop, "turn", noted)
    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt, me.ident)
        with pytest.raises(KeyboardInterrupt):
            lonely.connect([lonely.address] * 2, ENDLESS_S)
        interrupting.result()


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1", "127.0.0.1:", "localhost:80", "127.0.0.1:0", "127.0.0.1:70000", "::1:80"]
    + ["[127.0.0.1]:80", "[::1]", "127.0.0.1:http", "127.0.0.1:-1", ":80", "[::1:80", "127.1:80"],
)
def test_malformed_addresses(address: str) -> None:
    lonely = listener(0, 2)
    with pytest.raises(InputError, match="is not a numeric 'host:port'"):
        lonely.connect([lonely.address, address], 10)


def test_a_listener_serves_once() -> None:
    first = listener(0, 1)
    assert first.connect([first.address], 1) == []
    with pytest.raises(CommunicationError, match="no longer listens"):
        first.connect([first.address], 1)
    first.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 2}, "rank 2 is not in a group of 2"),
        ({"rank": -1}, "rank -1 is not in a group of 2"),
        ({"host": "localhost"}, "not a numeric IPv4 or IPv6 address"),
        ({"host": "0.0.0.0"}, "every interface"),
        ({"host": "::"}, "every interface"),
        ({"secret": b""}, "secret is empty"),
        ({"channels": 0}, "each has to be positive"),
        ({"memory_bytes": 0}, "each has to be positive"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        listener(**{"rank": 0, "ranks": 2, **changes})


def test_a_host_that_is_not_here() -> None:
    with pytest.raises(CommunicationError, match=r"cannot listen on 192\.0\.2\.1"):
        listener(0, 1, "192.0.2.1")


def test_the_number_of_addresses_is_checked() -> None:
    lonely = listener(0, 2)
    with pytest.raises(InputError, match="1 addresses for 2 ranks"):
        lonely.connect([lonely.address], 1)
