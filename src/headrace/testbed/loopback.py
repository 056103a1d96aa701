"""Testbed without namespaces: loopback addresses, and rates paced by the transport.

The kernel shapes nothing here. headrace's own transport reads the rates from the file that
HEADRACE_PACE names and paces every connection to `pace_rate`; other programs (Gloo, MPI) run
unpaced, so they cannot be compared on it. Limits of the approximation:

- an uplink is split evenly among the hosts of its rack, so a lone flow never gets all of it;
- a host's rate holds for each connection, so several at once may exceed it;
- a changed rate holds for connections made after it.
"""

from collections.abc import Mapping
from typing import Any

from headrace.errors import TestbedError
from headrace.testbed.rates import PAYLOAD_SHARE
from headrace.testbed.spec import Host, TestbedSpec

INTERFACE = "lo"


def loopback_address(host: Host) -> str:
    """Return the address of a host on loopback: 127.0.<rack + 1>.<position + 1>."""
    _, _, rack, position = host.address.split(".")
    return f"127.0.{rack}.{position}"


def pace_table(spec: TestbedSpec) -> dict[str, Any]:
    """Return the content of HEADRACE_PACE's file: payload rates in bytes a second.

    ``{"hosts": {address: {"rack": index, "bytes_per_s": rate}}, "racks": [{"bytes_per_s": rate}]}``
    """
    return {
        "hosts": {
            loopback_address(host): {
                "rack": host.rack,
                "bytes_per_s": host.bytes_per_s * PAYLOAD_SHARE,
            }
            for host in spec.hosts
        },
        "racks": [{"bytes_per_s": rack.bytes_per_s * PAYLOAD_SHARE} for rack in spec.racks],
    }


def pace_rate(pace: Mapping[str, Any], src: str, dst: str) -> float:
    """Return the payload bytes a second that one connection from `src` to `dst` may send.

    `pace` is what `pace_table` returns; `src` and `dst` are addresses. The least of both hosts'
    rates and, between racks, of each rack's uplink over the number of its hosts.

    Raises
    ------
    TestbedError : an address that is none of the hosts'.
    """
    hosts = pace["hosts"]
    for address in (src, dst):
        if address not in hosts:
            raise TestbedError(
                f"{address} is not a host of the pacing file, needs one of {', '.join(hosts)}"
            )
    ends = (hosts[src], hosts[dst])
    rates = [float(end["bytes_per_s"]) for end in ends]
    if ends[0]["rack"] != ends[1]["rack"]:
        for end in ends:
            sharing = sum(host["rack"] == end["rack"] for host in hosts.values())
            rates.append(float(pace["racks"][end["rack"]]["bytes_per_s"]) / sharing)
    return min(rates)
