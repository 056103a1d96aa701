"""`Testbed`: one emulated cluster, from up to down."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.errors import TestbedError
from headrace.facades import offered_by
from headrace.forks import ForkMark
from headrace.launch.ports import free_port
from headrace.settings import child_environment
from headrace.testbed import loopback, network, privileges, state, teardown
from headrace.testbed.rates import parse_rate
from headrace.testbed.spec import IPV4, Host, TestbedSpec
from headrace.testbed.state import LOOPBACK, NAMESPACES, Record

_MASTER_PORT = 29500
_GUARDIAN_DEADLINE_S = 10.0


@offered_by("headrace.testbed")
class Testbed:
    """A running testbed. As a context manager it is taken down on exit, but not in a forked child.

    One that this process owns is also removed when the process ends, even killed: a small guardian
    process waits for that.

    Attributes
    ----------
    record : its record on disk.

    Examples
    --------
    >>> with Testbed.up(TestbedSpec.load("examples/testbed-2x2.toml")) as testbed:
    ...     job = testbed.popen("host0", ["python", "train.py"])
    ...     testbed.set_rate("rack0", "50mbit")
    ...     job.wait()
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    def __init__(
        self,
        record: Record,
        *,
        guardian: "subprocess.Popen[bytes] | None" = None,
        lock: int | None = None,
        fallback_reason: str | None = None,
    ) -> None:
        self.record = record
        self._guardian = guardian
        self._lock = lock
        self._mark = ForkMark()
        self.fallback_reason = fallback_reason

    @classmethod
    def up(
        cls, spec: TestbedSpec, *, fallback: bool | None = None, detached: bool = False
    ) -> "Testbed":
        """Build the testbed, first removing those of owners that crashed.

        Parameters
        ----------
        fallback : True: on loopback; False: with namespaces or not at all; None: on loopback
            where namespaces cannot be made (`fallback_reason` is then the reason).
        detached : leave it up when this process ends, until `down`.

        Raises
        ------
        TestbedError : it cannot be built; all parts are removed.
        """
        reason = "requested" if fallback else privileges.unavailable_reason()
        if reason is not None and fallback is False:
            raise TestbedError(f"network namespaces cannot be made: {reason}")
        if spec.family != IPV4:
            _check_ipv6(spec, reason)
        state.remove_crashed()
        directory, lock = state.reserve()
        try:
            record = Record(
                directory=directory,
                run=directory.name,
                mode=NAMESPACES if reason is None else LOOPBACK,
                spec=spec,
                owner=(os.getpid(), teardown.start_time(os.getpid()) or ""),
                master_port=_MASTER_PORT if reason is None else free_port("127.0.0.1"),
            )
            record.save()
            guardian = None if detached else _start_guardian(record)
            testbed = cls(record, guardian=guardian, lock=lock, fallback_reason=reason)
        except BaseException:
            teardown.remove(directory)
            if lock is not None:
                os.close(lock)
            raise
        try:
            if reason is None:
                network.build(record.run, spec)
            else:
                state.write_json(record.pace_file, loopback.pace_table(spec))
            if detached:  # last: a process killed earlier would leave it half built
                testbed.record = replace(record, owner=None)
                testbed.record.save()
                testbed._unlock()
        except BaseException:
            testbed.down()
            raise
        return testbed

    @classmethod
    def attach(cls, name: str | None = None) -> "Testbed":
        """Return the testbed with this name or run id; without one, the only one that is up."""
        return cls(state.find(name))

    @property
    def run(self) -> str:
        """The run id, which is part of every name it has in the kernel."""
        return self.record.run

    @property
    def spec(self) -> TestbedSpec:
        """Its specification, with the rates as this object read or set them last."""
        return self.record.spec

    @property
    def is_fallback(self) -> bool:
        """True on loopback, where only headrace's transport is held to the rates."""
        return self.record.mode == LOOPBACK

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts, with the addresses they have here."""
        if not self.is_fallback:
            return self.spec.hosts
        return tuple(
            replace(host, address=loopback.loopback_address(host)) for host in self.spec.hosts
        )

    def host(self, name: str) -> Host:
        """Return the host with this name; raises TestbedError naming those there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise TestbedError(
            f"no host '{name}'; hosts: {', '.join(host.name for host in self.hosts)}"
        )

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` on a host."""
        self.host(host)
        if not argv:
            raise TestbedError("the command is empty")
        if self.is_fallback:
            return list(argv)
        ip = teardown.find_program("ip") or "ip"
        return [ip, "netns", "exec", teardown.namespace_name(self.run, host), *argv]

    def environment(self, host: str) -> dict[str, str]:
        """Return the variables added to this process's for a command on `host`.

        Gloo, NCCL, torch's TensorPipe and headrace take the host's interface from them. `torchrun`
        reads PET_<OPTION> as the default of an option: with these, ``torchrun train.py`` on every
        host is one job by static rendezvous, and ``--rdzv-backend=c10d`` works as well (it hangs
        unless the host of the store and every host's own address are given).
        """
        index = [testbed_host.name for testbed_host in self.hosts].index(self.host(host).name)
        master = self.hosts[0].address
        port = str(self.record.master_port)
        interface = loopback.INTERFACE if self.is_fallback else network.INTERFACE
        variables = {
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            "HEADRACE_SOCKET_IFNAME": interface,
            "HEADRACE_TESTBED_HOST": host,
            "HEADRACE_TESTBED_ADDRESS": self.hosts[index].address,
            "MASTER_ADDR": master,
            "MASTER_PORT": port,
            "PET_NNODES": str(len(self.hosts)),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": master,
            "PET_MASTER_PORT": port,
            "PET_LOCAL_ADDR": self.hosts[index].address,
            "PET_RDZV_ENDPOINT": f"[{master}]:{port}" if ":" in master else f"{master}:{port}",
            "PET_RDZV_CONF": f"is_host={int(index == 0)}",
        }
        if self.is_fallback:
            variables["HEADRACE_PACE"] = str(self.record.pace_file)
        return variables

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> "subprocess.Popen[Any]":
        """Start `argv` on a host and return its process; the id is the command's own.

        Parameters
        ----------
        env : changes to the environment on top of `environment` (None removes a variable).
        options : as for `subprocess.Popen`.
        """
        command = self.command(host, argv)
        if not self.record.directory.is_dir():
            raise TestbedError(f"testbed {self.run} is down")
        if self.is_fallback:
            # a session of its own, so that `down` finds its children
            options.setdefault("start_new_session", True)
        process = subprocess.Popen(
            command, env=child_environment({**self.environment(host), **(env or {})}), **options
        )
        if self.is_fallback:
            teardown.note_process(self.record.directory, process.pid)
        return process

    def replace_process(self, host: str, argv: Sequence[str]) -> None:
        """Replace this process by `argv` on a host; does not return."""
        command = self.command(host, argv)
        if self.is_fallback:
            teardown.note_process(self.record.directory, os.getpid())
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execvpe(command[0], command, child_environment(self.environment(host)))
        except OSError as error:
            raise TestbedError(f"'{command[0]}' cannot be run: {error.strerror}") from error

    def set_rate(self, target: str, rate: str | int) -> None:
        """Change the rate of a host, or of a rack's uplink, while traffic flows.

        Parameters
        ----------
        target : the name of a host, or of a rack for its uplink (both ways).
        rate : such as "50mbit", or whole bytes a second.
        """
        before = Record.load(self.record.directory).spec  # another object may have set others
        after = before.with_rate(target, parse_rate(rate))
        if self.is_fallback:
            state.write_json(self.record.pace_file, loopback.pace_table(after))
        else:
            network.change(self.run, before, after)
        self.record = replace(self.record, spec=after)
        self.record.save()

    def down(self, *, grace_s: float = teardown.GRACE_S) -> None:
        """End its processes (SIGTERM, after `grace_s` SIGKILL) and remove it entirely."""
        teardown.remove(self.record.directory, grace_s)
        if self._guardian is not None and self._guardian.stdin is not None:
            with suppress(BrokenPipeError):
                self._guardian.communicate(b"done", timeout=_GUARDIAN_DEADLINE_S)
            self._guardian = None
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "Testbed":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._mark.forked:  # a child that leaves the block, as it ends
            self.down()


def _check_ipv6(spec: TestbedSpec, fallback_reason: str | None) -> None:
    """Raise TestbedError if hosts cannot have the addresses of `spec`."""
    reason = privileges.no_ipv6_reason()
    if reason is None and fallback_reason is not None:
        reason = f"on loopback ({fallback_reason}) there is one IPv6 address, not one per host"
    if reason is not None:
        raise TestbedError(f"field 'family' is {spec.family!r}, needs 'ipv4' here: {reason}")


def _start_guardian(record: Record) -> "subprocess.Popen[bytes]":
    # a new session, so that Ctrl-C does not reach it
    owner = [] if record.owner is None else [str(part) for part in record.owner]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", teardown.__file__, str(record.directory), *owner],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
