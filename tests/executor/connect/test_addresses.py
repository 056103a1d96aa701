"""Addresses of both families: how they are written, and which this host has."""

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.executor.connect import addresses as module
from headrace.executor.connect.addresses import (
    IPV4,
    IPV6,
    addresses_towards,
    format_address,
    host_of,
    interface_addresses,
)
from headrace.executor.connect.sockets import numeric_host, parsed
from tests.conformance.launch import all_succeed

LINES = """\
fe80000000000000000000fffe000001 04 40 20 80 both0
fd000000000000000000000000000002 04 40 00 82 both0
20010db8000000000000000000000009 04 40 00 c0 both0
fe80000000000000000000fffe000002 05 40 20 80 link0
fe80000000000000000000fffe000003 06 40 20 c0 early0
00000000000000000000000000000001 01 80 10 80 lo
"""


@pytest.fixture
def has_ipv6() -> None:
    if not any(IPV6 in interface_addresses(name) for _, name in socket.if_nameindex()):
        pytest.skip("no interface has an IPv6 address (see /proc/net/if_inet6)")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:5"),
        ("::1", "[::1]:5"),
        ("fd00:0:0::2", "[fd00::2]:5"),
        ("fe80::1%eth0", "[fe80::1]:5"),
    ],
)
def test_addresses_are_written_and_taken_apart(host: str, address: str) -> None:
    assert format_address(host, 5) == address
    bare = ipaddress.ip_address(host.partition("%")[0])
    assert host_of(address) == str(bare)
    assert parsed(address).address[:2] == (str(bare), 5)


@pytest.mark.usefixtures("has_ipv6")
def test_an_address_of_the_link_means_our_own_link() -> None:
    """The peer's name of the interface, or none, says nothing here."""
    source = numeric_host("fe80::1%lo")
    index = socket.if_nametoindex("lo")
    assert parsed("[fe80::2]:5", source).address == ("fe80::2", 5, 0, index)
    assert parsed("[fe80::2%nosuch]:5", source).address == ("fe80::2", 5, 0, index)
    assert parsed("[fd00::2]:5", source).address == ("fd00::2", 5, 0, 0)


def test_the_addresses_of_an_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Global before the link's, and none that is not (yet) to be used."""
    table = tmp_path / "if_inet6"
    table.write_text(LINES)
    monkeypatch.setattr(module, "_IF_INET6", table)
    found: Mapping[str, str | None] = {
        name: interface_addresses(name).get(IPV6)
        for name in ("both0", "link0", "early0", "lo", "nosuch0")
    }
    assert found == {
        "both0": "fd00::2",
        "link0": "fe80::ff:fe00:2%link0",
        "early0": None,
        "lo": "::1",
        "nosuch0": None,
    }
    monkeypatch.setattr(module, "_IF_INET6", tmp_path / "missing")  # a kernel without IPv6
    assert interface_addresses("lo") == {IPV4: "127.0.0.1"}


@pytest.mark.usefixtures("has_ipv6")
def test_the_way_to_an_address_has_its_family() -> None:
    assert addresses_towards("::1") == {IPV6: "::1"}
    assert addresses_towards("127.0.0.1") == {IPV4: "127.0.0.1"}
    assert addresses_towards("::ffff:127.0.0.1") == {IPV4: "127.0.0.1"}
    assert addresses_towards("no.such.host.invalid") == {}


JOB = """
import sys, torch, torch.distributed as dist, headrace.torch
from datetime import timedelta
dist.init_process_group("headrace", timeout=timedelta(seconds=30))
tensor = torch.full((300_000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.unique().tolist() == [3.0]
group = dist.new_group([1, 0])
dist.all_reduce(tensor, group=group)
assert tensor.unique().tolist() == [6.0]
dist.destroy_process_group()
"""


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("has_ipv6")
@pytest.mark.parametrize(
    "settings",
    [
        {"MASTER_ADDR": "::1"},
        {"MASTER_ADDR": "::1", "HEADRACE_TLS": "on", "HEADRACE_SHARED_MEMORY": "off"},
        {"MASTER_ADDR": "localhost", "HEADRACE_SOCKET_IFNAME": "lo"},
    ],
)
def test_a_job_over_ipv6(settings: dict[str, str]) -> None:
    """An IPv6 store, or an interface without an IPv4 address, made a job fail."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
        port = str(probe.getsockname()[1])
    all_succeed(JOB, 2, MASTER_PORT=port, WORLD_SIZE="2", LOCAL_RANK="0", **settings)
