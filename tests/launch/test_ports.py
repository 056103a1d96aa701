"""Ports for processes that are to listen later."""

import socket
from pathlib import Path

import pytest

from headrace.launch import ports
from headrace.launch.ports import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_none_that_connections_get(host: str) -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, text.split())
    chosen = {free_port(host) for _ in range(20)}
    assert len(chosen) > 1
    assert not any(first <= port <= last or port < 20_000 for port in chosen)


def test_where_no_other_port_is_free_it_is_one_that_connections_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_ports_of_connections", lambda: (0, 1 << 16))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port("127.0.0.1")))
