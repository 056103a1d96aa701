"""Specification of a testbed: racks, hosts and rates, read from a short TOML file.

::

    name = "two-racks"                # default: the file's name
    family = "ipv4"                   # of addresses: ipv4, ipv6 or both

    [defaults]
    host_rate = "400mbit"             # kbit, mbit or gbit; or a whole number of bytes a second
    uplink_rate = "100mbit"

    [[racks]]
    hosts = 2                         # a number, or a list of names

    [[racks]]
    name = "far"
    hosts = ["a", "b"]
    host_rate = "200mbit"             # for the hosts of this rack
    uplink_rate = "50mbit"            # between this rack and the core

    [hosts.b]
    rate = "20mbit"                   # for this host alone
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import TestbedError
from headrace.testbed.fields import Fields
from headrace.testbed.machines import Host, Rack
from headrace.testbed.orders import resolve_order
from headrace.testbed.rates import PAYLOAD_SHARE, PAYLOAD_SHARE_V6

if TYPE_CHECKING:
    from headrace.topology import Topology

MAX_RACKS = 200
MAX_HOSTS_PER_RACK = 200
RESERVED_HOST = "switch"
IPV4, IPV6, BOTH = FAMILIES = ("ipv4", "ipv6", "both")


@dataclass(frozen=True, kw_only=True)
class TestbedSpec:
    """Racks and hosts with the rates of their links, in bytes on the wire a second.

    Racks and hosts share one name space, so that a command can take either (a rack's name means
    its uplink).
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    name: str
    racks: tuple[Rack, ...]
    hosts: tuple[Host, ...]
    family: str = IPV4

    @classmethod
    def load(cls, path: str | Path) -> "TestbedSpec":
        """Read a TOML file.

        Raises
        ------
        TestbedError : naming the file, the field, what was found and what is allowed.
        """
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TestbedError(f"{path}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TestbedError(f"{path}: not a TOML file: {error}") from error
        return cls.from_table(table, source=str(path), default_name=_name_from(path.stem))

    @classmethod
    def from_table(
        cls, table: Mapping[str, Any], *, source: str = "testbed", default_name: str = "testbed"
    ) -> "TestbedSpec":
        """Read the table of a TOML file; see the module's docstring for the layout."""
        return _Reader(source).read(table, default_name)

    def to_table(self) -> dict[str, Any]:
        """Return the table that `from_table` reads, every rate in bytes a second."""
        return {
            "name": self.name,
            "family": self.family,
            "racks": [
                {
                    "name": rack.name,
                    "hosts": [host.name for host in self.hosts if host.rack == index],
                    "uplink_rate": rack.bytes_per_s,
                }
                for index, rack in enumerate(self.racks)
            ],
            "hosts": {host.name: {"rate": host.bytes_per_s} for host in self.hosts},
        }

    @property
    def payload_share(self) -> float:
        """Share of a link's rate that TCP can carry as payload, with the family that jobs use."""
        return PAYLOAD_SHARE_V6 if self.family == IPV6 else PAYLOAD_SHARE

    @cached_property
    def host_named(self) -> Mapping[str, Host]:
        """Host name -> host."""
        return {host.name: host for host in self.hosts}

    def with_rate(self, target: str, bytes_per_s: int) -> "TestbedSpec":
        """Return the spec with another rate for a host, or for a rack's uplink.

        Raises
        ------
        TestbedError : `target` is neither a host nor a rack, or the rack has no uplink.
        """
        if any(rack.name == target for rack in self.racks):
            if len(self.racks) == 1:
                raise TestbedError(f"rack '{target}' is the only one, so it has no uplink to set")
            racks = tuple(
                replace(rack, bytes_per_s=bytes_per_s) if rack.name == target else rack
                for rack in self.racks
            )
            return replace(self, racks=racks)
        if target not in self.host_named:
            raise TestbedError(
                f"'{target}' is neither a host nor a rack; hosts: {', '.join(self.host_named)}; "
                f"racks (for their uplinks): {', '.join(rack.name for rack in self.racks)}"
            )
        hosts = tuple(
            replace(host, bytes_per_s=bytes_per_s) if host.name == target else host
            for host in self.hosts
        )
        return replace(self, hosts=hosts)

    def order(self, order: str | Sequence[int] = "rack", *, seed: int | None = None) -> list[int]:
        """Return the host index of every rank; see `orders.resolve_order`."""
        return resolve_order([(host.name, host.rack) for host in self.hosts], order, seed=seed)

    def topology(
        self,
        order: str | Sequence[int] = "rack",
        *,
        seed: int | None = None,
        alpha_us: float = 50.0,
    ) -> "Topology":
        """Return the true topology under the payload rates of TCP; see `truth.true_topology`."""
        from headrace.testbed.truth import true_topology  # imports NumPy and Arrow: deferred

        return true_topology(
            self.name,
            self.racks,
            self.hosts,
            self.order(order, seed=seed),
            payload_share=self.payload_share,
            alpha_us=alpha_us,
        )


class _Reader(Fields):
    def read(self, table: Mapping[str, Any], default_name: str) -> TestbedSpec:
        self.check_fields("", table, ("name", "family", "defaults", "racks", "hosts"))
        family = table.get("family", IPV4)
        if family not in FAMILIES:
            raise self.wrong("family", family, f"one of {', '.join(FAMILIES)}")
        defaults = self.table_at("defaults", table.get("defaults", {}))
        self.check_fields("defaults.", defaults, ("host_rate", "uplink_rate"))
        overrides = self.table_at("hosts", table.get("hosts", {}))
        rows = table.get("racks")
        if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_RACKS:
            raise self.wrong("racks", rows, f"1 to {MAX_RACKS} [[racks]] tables")
        racks: list[Rack] = []
        hosts: list[Host] = []
        for index, row in enumerate(rows):
            rack = self.table_at(f"racks[{index}]", row)
            self.read_rack(index, {**defaults, **rack}, len(rows), overrides, racks, hosts)
        hosts = [_with_family(host, family) for host in hosts]
        names = [item.name for item in (*racks, *hosts)]
        for name in names:
            if names.count(name) > 1:
                raise self.wrong("racks", name, "every rack and host to have a name of its own")
        for name in overrides:
            if name not in [host.name for host in hosts]:
                raise self.wrong(
                    f"hosts.{name}", name, f"one of {', '.join(h.name for h in hosts)}"
                )
        return TestbedSpec(
            name=self.name_at("name", table.get("name", default_name)),
            racks=tuple(racks),
            hosts=tuple(hosts),
            family=family,
        )

    def read_rack(
        self,
        index: int,
        row: Mapping[str, Any],
        count: int,
        overrides: Mapping[str, Any],
        racks: list[Rack],
        hosts: list[Host],
    ) -> None:
        where = f"racks[{index}]."
        self.check_fields(where, row, ("name", "hosts", "host_rate", "uplink_rate"))
        # a lone rack has no uplink, so its rate may be left out
        uplink = row.get("uplink_rate") if count > 1 else row.get("uplink_rate", 1_000_000)
        racks.append(
            Rack(
                name=self.name_at(f"{where}name", row.get("name", f"rack{index}")),
                bytes_per_s=self.rate_at(f"{where}uplink_rate", uplink),
            )
        )
        for position, name in enumerate(self.host_names(f"{where}hosts", row, len(hosts))):
            own = self.table_at(f"hosts.{name}", overrides.get(name, {}))
            self.check_fields(f"hosts.{name}.", own, ("rate",))
            if "rate" in own:
                rate = self.rate_at(f"hosts.{name}.rate", own["rate"])
            else:
                rate = self.rate_at(f"{where}host_rate", row.get("host_rate"))
            # the range of RFC 1918 that is least used; it exists only inside the namespaces
            address = f"10.77.{index + 1}.{position + 1}"
            hosts.append(Host(name=name, rack=index, address=address, bytes_per_s=rate))

    def host_names(self, field: str, row: Mapping[str, Any], first: int) -> list[str]:
        found = row.get("hosts")
        allowed = f"a number from 1 to {MAX_HOSTS_PER_RACK}, or a list of names"
        if isinstance(found, int) and not isinstance(found, bool):
            if not 1 <= found <= MAX_HOSTS_PER_RACK:
                raise self.wrong(field, found, allowed)
            return [f"host{first + i}" for i in range(found)]
        if not isinstance(found, list) or not 1 <= len(found) <= MAX_HOSTS_PER_RACK:
            raise self.wrong(field, found, allowed)
        names = [self.name_at(f"{field}[{i}]", name) for i, name in enumerate(found)]
        if RESERVED_HOST in names:
            raise self.wrong(field, RESERVED_HOST, "another name (that one is the switch's)")
        return names


def _with_family(host: Host, family: str) -> Host:
    """Return `host`, which has an IPv4 address, with the addresses of its family."""
    if family == IPV4:
        return host
    _, _, rack, position = map(int, host.address.split("."))
    # as with IPv4: of the private range, and inside the namespaces only
    address = f"fd77::{rack:x}:{position:x}"
    if family == IPV6:
        return replace(host, address=address)
    return replace(host, second_address=address)


def _name_from(stem: str) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", stem.lower()).lstrip("-0123456789")[:31]
    return name or "testbed"
