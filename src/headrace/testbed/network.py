"""The network of a testbed in the kernel: namespaces, bridges, veth pairs and token buckets.

Every host is a namespace with one interface, `INTERFACE`. One more namespace, the switch, holds
all bridges: `rack0`, `rack1`, ... and `core`. The other end of host i's veth pair is `host<i>`
in the switch; `up<r>` (at the rack) and `down<r>` (at the core) join a rack to the core. Traffic
is shaped where it leaves an interface, so each link has a token bucket at both ends. No namespace
has a route or a device to anywhere else.

Devices are made inside the namespaces: none is ever in the machine's own, where names could
collide.
"""

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import TestbedError
from headrace.testbed.rates import TokenBucket, host_segments, token_bucket
from headrace.testbed.spec import RESERVED_HOST, Host, TestbedSpec
from headrace.testbed.teardown import NAMES_DIRECTORY, find_program, namespace_name

INTERFACE = "eth0"
_SUBNET = "10.77.0.0/16"
_SUBNET_V6 = "fd77::/64"
_DEADLINE_S = 30.0


def build(run: str, spec: TestbedSpec) -> None:
    """Make the network of `spec` under the names of `run`.

    Raises
    ------
    TestbedError : a command failed; a partial network stays for `teardown.remove`.
    """
    switch = namespace_name(run, RESERVED_HOST)
    hosts = [namespace_name(run, host.name) for host in spec.hosts]
    _ip(None, [f"netns add {name}" for name in (switch, *hosts)])
    _ip(switch, _switch_commands(spec, hosts))
    # BBR, a default in places, shares a link with itself 10 to 85; CUBIC shares it evenly. It is
    # set on the route because a namespace may not make it its default.
    control = " congctl cubic" if _has_cubic() else ""
    for host, name in zip(spec.hosts, hosts, strict=True):
        _ip(
            name,
            [
                "link set lo up",
                f"link set {INTERFACE} addrgenmode none",
                *(f"address add {address}" for address in _addresses(host)),
                f"link set {INTERFACE} up gso_max_segs {host_segments(host.bytes_per_s)}",
                *(f"route add {_route(address)}{control}" for address in host.addresses),
            ],
        )
    _apply(run, "add", _ports(spec))
    _write_names(run, spec)


def _addresses(host: Host) -> Iterator[str]:
    """Yield arguments of ``ip address add``, without duplicate detection, which takes a second."""
    for address in host.addresses:
        if ":" not in address:
            yield f"{address}/16 dev {INTERFACE} noprefixroute"
            continue
        yield f"{address}/64 dev {INTERFACE} noprefixroute nodad"
        # known neighbours are probed from a link-local address
        link = address.replace("fd77::", "fe80::")
        yield f"{link}/64 dev {INTERFACE} nodad"


def _route(address: str) -> str:
    if ":" in address:
        return f"{_SUBNET_V6} dev {INTERFACE} src {address}"
    return f"{_SUBNET} dev {INTERFACE} scope link src {address}"


def change(run: str, before: TestbedSpec, after: TestbedSpec) -> None:
    """Change the rates of a running network from `before` to `after`; flows continue."""
    for old, new in zip(before.hosts, after.hosts, strict=True):
        segments = host_segments(new.bytes_per_s)
        if segments != host_segments(old.bytes_per_s):
            _ip(namespace_name(run, new.name), [f"link set {INTERFACE} gso_max_segs {segments}"])
    _apply(run, "change", sorted(set(_ports(after)) - set(_ports(before)), key=str))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Port:
    """One end of a link: its namespace, its device, and the token bucket of egress traffic."""

    owner: str
    device: str
    bucket: TokenBucket


def _ports(spec: TestbedSpec) -> Iterator[_Port]:
    arriving = max(host_segments(host.bytes_per_s) for host in spec.hosts)
    for index, host in enumerate(spec.hosts):
        own = token_bucket(host.bytes_per_s)
        yield _Port(owner=host.name, device=INTERFACE, bucket=own)
        towards = token_bucket(host.bytes_per_s, arriving_segments=arriving)
        yield _Port(owner=RESERVED_HOST, device=f"host{index}", bucket=towards)
    for index, rack in enumerate(spec.racks) if len(spec.racks) > 1 else ():
        both = token_bucket(rack.bytes_per_s, arriving_segments=arriving)
        for direction in ("up", "down"):
            yield _Port(owner=RESERVED_HOST, device=f"{direction}{index}", bucket=both)


def _apply(run: str, verb: str, ports: Iterable[_Port]) -> None:
    commands: dict[str, list[str]] = {}
    for port in ports:
        commands.setdefault(port.owner, []).append(
            f"qdisc {verb} dev {port.device} root {port.bucket.to_tc()}"
        )
    for owner, lines in commands.items():
        _run("tc", namespace_name(run, owner), lines)


def _switch_commands(spec: TestbedSpec, hosts: list[str]) -> Iterator[str]:
    bridges = [f"rack{index}" for index in range(len(spec.racks))]
    ports: list[str] = []
    if len(spec.racks) > 1:
        bridges.append("core")
    for bridge in bridges:
        yield f"link add name {bridge} type bridge mcast_snooping 0"
    for index in range(len(spec.racks)) if len(spec.racks) > 1 else ():
        yield f"link add name up{index} type veth peer name down{index}"
        yield f"link set up{index} master rack{index}"
        yield f"link set down{index} master core"
        ports += [f"up{index}", f"down{index}"]
    for index, (host, name) in enumerate(zip(spec.hosts, hosts, strict=True)):
        yield f"link add name host{index} type veth peer name {INTERFACE} netns {name}"
        yield f"link set host{index} master rack{host.rack}"
        ports.append(f"host{index}")
    for device in (*bridges, *ports):
        yield f"link set {device} up addrgenmode none"


def _write_names(run: str, spec: TestbedSpec) -> None:
    """Write every host's hosts file; torch warns about addresses without a name.

    Its dual-stack sockets look up the IPv4 address in its IPv6 form.
    """
    entries = [
        f"{address} {host.name}\n"
        for host in spec.hosts
        for host_address in host.addresses
        for address in (
            (host_address,) if ":" in host_address else (host_address, f"::ffff:{host_address}")
        )
    ]
    names = "127.0.0.1 localhost\n::1 localhost\n" + "".join(entries)
    for host in spec.hosts:
        directory = NAMES_DIRECTORY / namespace_name(run, host.name)
        with suppress(OSError):  # a read-only /etc: addresses do
            directory.mkdir(parents=True)
            (directory / "hosts").write_text(names)


def _has_cubic() -> bool:
    try:
        algorithms = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    except OSError:
        return False
    return "cubic" in algorithms.split()


def _ip(namespace: str | None, commands: Iterable[str]) -> None:
    _run("ip", namespace, commands)


def _run(program: str, namespace: str | None, commands: Iterable[str]) -> None:
    path = find_program(program)
    if path is None:
        raise TestbedError(f"'{program}' (of the package iproute2) is not installed")
    lines = list(commands)
    where = [] if namespace is None else ["-n", namespace]
    try:
        done = subprocess.run(
            [path, *where, "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"'{program} {' '.join(where)}' did not end within {_DEADLINE_S:g} s: try again when "
            f"the machine has less to do; the commands were: {'; '.join(lines)}"
        ) from None
    if done.returncode:
        raise TestbedError(
            f"'{program} {' '.join(where)}' failed: {done.stderr.strip() or done.returncode}; "
            f"the commands were: {'; '.join(lines)}"
        )
