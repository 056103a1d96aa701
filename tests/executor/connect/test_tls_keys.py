"""The keys that come with the links of a group whose connections go on in TLS."""

import pytest

from headrace.errors import CommunicationError
from headrace.executor.connect.listener import PeerConnection
from tests.executor.connect.connecting import (
    close,
    listener,
    no_descriptor_is_left,  # noqa: F401 - a fixture
    together,
)
from tests.waiting import with_longer_deadlines

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

Keys = dict[tuple[int, int, int], bytes]


def keys(hosts: list[str], *, tls: bool) -> Keys:
    """By rank, peer and channel."""
    ranks = len(hosts)
    outcomes = together([listener(r, ranks, hosts[r], tls=tls) for r in range(ranks)])
    found: Keys = {}
    for rank, links in enumerate(outcomes):
        assert isinstance(links, list), links
        found.update({(rank, link.peer, link.channel): link.tls_key for link in links})
    close(outcomes)
    return found


def test_only_both_ends_of_a_tcp_connection_have_its_key() -> None:
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
    found = keys(hosts, tls=True)
    between_hosts = {ends: key for ends, key in found.items() if hosts[ends[0]] != hosts[ends[1]]}
    assert len(between_hosts) == 2 * 2 * 4
    for (rank, peer, channel), key in between_hosts.items():
        assert len(key) == 32
        assert found[peer, rank, channel] == key
    assert len(set(between_hosts.values())) == len(between_hosts) / 2
    # within a host, nothing goes over a network
    assert {key for ends, key in found.items() if ends not in between_hosts} == {b""}


def test_without_tls_there_are_no_keys() -> None:
    assert set(keys(["127.0.0.1", "127.0.0.2"], tls=False).values()) == {b""}


@pytest.mark.parametrize("odd_one", [0, 1])
@pytest.mark.parametrize("hosts", [("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "127.0.0.1")])
def test_a_rank_that_wants_something_else_stays_out(odd_one: int, hosts: tuple[str, str]) -> None:
    def check_errors(deadline_s: float) -> None:
        group = [listener(rank, 2, hosts[rank], tls=rank == odd_one) for rank in range(2)]
        accepting, dialling = together(group, deadline_s=deadline_s)
        reason = "wants none where this group has TLS" if odd_one == 0 else "wants it where"
        assert isinstance(accepting, CommunicationError)
        assert reason in str(accepting)
        assert isinstance(dialling, CommunicationError)
        assert "failed the handshake: it closed the connection" in str(dialling)

    with_longer_deadlines(check_errors)


def test_a_link_does_not_show_its_key() -> None:
    assert "tls_key" not in repr(PeerConnection(3, 1, 0, -1, b"k" * 32))
