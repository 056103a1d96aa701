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

import random
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace import fields
from headrace.errors import TestbedError
from headrace.facades import offered_by, public_value
from headrace.fields import Field
from headrace.files import read_text
from headrace.testbed.rates import PAYLOAD_SHARE, PAYLOAD_SHARE_V6, parse_rate

if TYPE_CHECKING:
    from headrace.topology import Topology

MAX_RACKS = 200
MAX_HOSTS_PER_RACK = 200
RESERVED_HOST = "switch"
ORDERS = ("rack", "interleaved", "random")
"""Rank orders by name: rack by rack, one host of every rack in turn, shuffled."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
IPV4, IPV6, BOTH = FAMILIES = ("ipv4", "ipv6", "both")


@public_value("headrace.testbed")
class Host:
    """One emulated machine.

    Attributes
    ----------
    rack : index of its rack.
    address : used by jobs; its IPv4 address unless the testbed has IPv6 only.
    second_address : its IPv6 address, where the testbed has both families.
    """

    name: str
    rack: int
    address: str
    bytes_per_s: int
    second_address: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of its addresses."""
        return (self.address, *([self.second_address] if self.second_address else []))


@public_value("headrace.testbed")
class Rack:
    """Hosts behind one uplink; `bytes_per_s` is the uplink's rate, the same both ways."""

    name: str
    bytes_per_s: int


_T = TypeVar("_T", Rack, Host)


@offered_by("headrace.testbed")
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
            table = tomllib.loads(read_text(path, TestbedError))
        except tomllib.TOMLDecodeError as error:
            raise TestbedError(f"{path}: not a TOML file: {error}") from error
        return cls.from_table(table, source=str(path), default_name=_name_from(path.stem))

    @classmethod
    def from_table(
        cls, table: Mapping[str, Any], *, source: str = "testbed", default_name: str = "testbed"
    ) -> "TestbedSpec":
        """Read the table of a TOML file; see the module's docstring for the layout."""
        return _read(Field(table, source, TestbedError), default_name)

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
        racks = [rack.name for rack in self.racks]
        if racks == [target]:
            raise TestbedError(f"rack '{target}' is the only one, so it has no uplink to set")
        if target not in (*racks, *self.host_named):
            raise TestbedError(
                f"'{target}' is neither a host nor a rack; hosts: {', '.join(self.host_named)}; "
                f"racks (for their uplinks): {', '.join(racks)}"
            )

        def changed(items: Iterable[_T]) -> tuple[_T, ...]:
            return tuple(
                replace(item, bytes_per_s=bytes_per_s) if item.name == target else item
                for item in items
            )

        return replace(self, racks=changed(self.racks), hosts=changed(self.hosts))

    def order(self, order: str | Sequence[int] = "rack", *, seed: int | None = None) -> list[int]:
        """Return the host index of every rank.

        Parameters
        ----------
        order : one of `ORDERS`, host names or indices joined by commas, or a sequence of indices.
        seed : for "random": the same seed gives the same order.

        Raises
        ------
        TestbedError : the order names an unknown host, or one twice.
        """
        every = list(range(len(self.hosts)))
        if order == "rack":
            return every
        if order == "interleaved":
            racks = [host.rack for host in self.hosts]
            return sorted(every, key=lambda i: (racks[:i].count(racks[i]), racks[i]))
        if order == "random":
            random.Random(seed).shuffle(every)
            return every
        items = order.split(",") if isinstance(order, str) else order
        listed = [self._index(item) for item in items]
        if not listed or len(set(listed)) != len(listed):
            raise TestbedError(f"order is {order!r}, needs at least one host and none twice")
        return listed

    def _index(self, item: str | int) -> int:
        names, text = list(self.host_named), str(item).strip()
        if text in names:
            return names.index(text)
        if text.isdecimal() and int(text) < len(names):
            return int(text)
        raise TestbedError(
            f"order has {item!r}, needs one of {', '.join(ORDERS)}, or hosts joined by commas "
            f"(names or 0 to {len(names) - 1}); hosts: {', '.join(names)}"
        )

    def topology(
        self,
        order: str | Sequence[int] = "rack",
        *,
        seed: int | None = None,
        alpha_us: float = 50.0,
    ) -> "Topology":
        """Return the true topology, at the payload rates of TCP: the reference for measurements.

        Links cost the slowest of the host and uplink rates they cross; every host's two directions
        and every uplink's two directions are shared capacities. Latency depends on the machine and
        is not part of a spec: every link gets `alpha_us`.
        """
        from headrace.topology.presets.racks import rack_network  # imports NumPy: deferred

        ranks, hosts, racks = self.order(order, seed=seed), self.hosts, self.racks
        rack_topology = rack_network(
            name=self.name,
            hosts=[host.name for host in hosts],
            addresses=[host.address for host in hosts],
            rank_host=ranks,
            rack_of=[host.rack for host in hosts],
            nic_rates=[host.bytes_per_s * self.payload_share for host in hosts],
            uplink_rates=[rack.bytes_per_s * self.payload_share for rack in racks],
            alpha_us=alpha_us,
            nic_name=lambda rank, direction: f"{hosts[ranks[rank]].name}-{direction}",
            uplink_name=lambda rack, direction: f"{racks[rack].name}-uplink-{direction}",
        )
        # ways out first, as in earlier files
        shared = sorted(rack_topology.shared, key=lambda capacity: capacity.name.endswith("-in"))
        return replace(rack_topology, shared=tuple(shared))


def _read(table: Field, default_name: str) -> TestbedSpec:
    table.allow("name", "family", "defaults", "racks", "hosts")
    family = table.at("family", default=IPV4)
    if family.found not in FAMILIES:
        raise family.wrong(f"one of {', '.join(FAMILIES)}")
    defaults, overrides = table.at("defaults", default={}), table.at("hosts", default={})
    defaults.allow("host_rate", "uplink_rate")
    rows = table.at("racks").items()
    if not 1 <= len(rows) <= MAX_RACKS:
        raise table.at("racks").wrong(f"1 to {MAX_RACKS} [[racks]] tables")
    racks: list[Rack] = []
    hosts: list[Host] = []
    for index, row in enumerate(rows):
        rack = row.holding({**defaults.found, **row.read(fields.table)})
        rack.allow("name", "hosts", "host_rate", "uplink_rate")
        # a lone rack has no uplink, so its rate may be left out
        uplink = rack.at("uplink_rate", default=None if len(rows) > 1 else 1_000_000)
        name = _name(rack.at("name", default=f"rack{index}"))
        racks.append(Rack(name=name, bytes_per_s=uplink.read(parse_rate)))
        for position, name in enumerate(_host_names(rack.at("hosts"), len(hosts))):
            own = overrides.at(name, default={})
            own.allow("rate")
            rate = own.at("rate") if own.found else rack.at("host_rate", default=None)
            # the range of RFC 1918 that is least used; it exists only inside the namespaces
            address = f"10.77.{index + 1}.{position + 1}"
            host = Host(name=name, rack=index, address=address, bytes_per_s=rate.read(parse_rate))
            hosts.append(_with_family(host, family.found))
    names = [item.name for item in (*racks, *hosts)]
    for name in names:
        if names.count(name) > 1:
            raise (
                table.at("racks")
                .holding(name)
                .wrong("every rack and host to have a name of its own")
            )
    overrides.allow(*(host.name for host in hosts))
    return TestbedSpec(
        name=_name(table.at("name", default=default_name)),
        racks=tuple(racks),
        hosts=tuple(hosts),
        family=family.found,
    )


def _host_names(field: Field, first: int) -> list[str]:
    hosts = field.found
    counted = isinstance(hosts, int) and not isinstance(hosts, bool)
    count = hosts if counted else len(hosts) if isinstance(hosts, list) else 0
    if not 1 <= count <= MAX_HOSTS_PER_RACK:
        raise field.wrong(f"a number from 1 to {MAX_HOSTS_PER_RACK}, or a list of names")
    if counted:
        return [f"host{first + i}" for i in range(count)]
    names = [_name(item) for item in field.items()]
    if RESERVED_HOST in names:
        raise field.wrong(f"another name than {RESERVED_HOST!r} (that one is the switch's)")
    return names


def _name(field: Field) -> str:
    """Return a name that can be part of the kernel's."""
    if not isinstance(field.found, str) or not _NAME.fullmatch(field.found):
        raise field.wrong("a lower-case letter, then up to 30 lower-case letters, digits or '-'")
    return field.found


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
