"""Processes of a job besides its trainers: servers of rows, readers and the cacher."""

import queue
import secrets
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.choose import PREFETCH
from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.embeddings.profile import Synchronisation
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.settings import SILENCE_S, EmbeddingSettings
from headrace.errors import CommunicationError
from headrace.launch.roles import MESSAGES, Role, Roles, Start, start_local

ProcessKey = tuple[str, int]
"""Kind of a process ("server", "reader", "cacher", "trainer"), and its number."""

_PROCESS = (sys.executable, "-m", "headrace.embeddings.run.process")
_STARTING = "starting the job"
RETURN_S = 60.0
"""Scripts of one job get to `fit` at about the same time, on hosts of about the same speed."""

_START_S = 300.0
"""For processes of headrace's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHost:
    """A host for a process.

    Attributes
    ----------
    start : starts it there; see `headrace.launch.Start`.
    address : IP address or name of the host, which the process listens at.
    """

    start: Start = start_local
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHosts:
    """A host for every process of a job; on this machine by default.

    Attributes
    ----------
    rendezvous : port at the first trainer's host, for torch's rendezvous; None: one that is free on
        this machine.
    """

    trainers: tuple[RoleHost, ...] = (RoleHost(),)
    servers: tuple[RoleHost, ...] = (RoleHost(),)
    readers: tuple[RoleHost, ...] = (RoleHost(),)
    cacher: RoleHost = RoleHost()
    rendezvous: int | None = None

    def __post_init__(self) -> None:
        for kind in ("trainers", "servers", "readers"):
            if not getattr(self, kind):
                raise EmbeddingError(f"a job has no {kind}, needs 1 or more")

    def without(self, lost: Collection[ProcessKey]) -> Self:
        """Return the hosts but for those of some trainers.

        Raises
        ------
        EmbeddingError : there is no other trainer.
        """
        left = [host for rank, host in enumerate(self.trainers) if ("trainer", rank) not in lost]
        return replace(self, trainers=tuple(left))

    def of(self, key: ProcessKey) -> RoleHost:
        """Return the host of a process."""
        kind, number = key
        return self.cacher if kind == "cacher" else getattr(self, f"{kind}s")[number]

    @classmethod
    def on_this_machine(cls, *, trainers: int = 1, servers: int = 1, readers: int = 1) -> Self:
        """Return hosts for numbers of processes."""
        host = RoleHost()
        return cls(
            trainers=(host,) * trainers, servers=(host,) * servers, readers=(host,) * readers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of a job's cacher.

    Attributes
    ----------
    lookahead : batches that a decision looks at; None: as many as the caches have room for.
    prefetch : batches between a row's fetch and its use.
    cache_bytes : of each trainer's caches; None: as the script says.
    folder : of the job's commits; one that has some is begun from the newest. None: there are none.
    commit_every : batches from one commit to the next; 0: one at every epoch's end alone.
    adapt : whether lookahead, prefetch and shares follow the job.
    equal_shares : whether trainers have equal shares of batches all the same.
    adapt_log : file on the cacher's host that changes are appended to; None: none.
    deadline_s : of the processes' calls.
    silence_s : without a sign of life of a process, after which it counts as lost.
    return_s : after a loss, from the start of all other trainers until one that was lost counts
        as gone with its host.
    ideal : whether no rows move; see `headrace.embeddings.run.ideal`.

    Raises
    ------
    EmbeddingError : an ideal job has a folder.
    """

    lookahead: int | None = None
    prefetch: int = PREFETCH
    synchronisation: Synchronisation = Synchronisation.TARGETED
    cache_bytes: int | None = None
    folder: Path | None = None
    commit_every: int = 0
    adapt: bool = True
    equal_shares: bool = False
    adapt_log: Path | None = None
    deadline_s: float = 1800.0
    silence_s: float = SILENCE_S
    return_s: float = RETURN_S
    ideal: bool = False

    def __post_init__(self) -> None:
        if self.ideal and self.folder is not None:
            raise EmbeddingError(
                f"{self.folder}: an ideal job has wrong rows, and commits none: run it without a "
                "folder for its state"
            )

    @classmethod
    def of_plan(cls, plan: EmbeddingPlan, settings: EmbeddingSettings) -> Self:
        """Return the options of a plan, on a machine with settings."""
        return cls(
            lookahead=plan.lookahead,
            prefetch=plan.prefetch,
            synchronisation=plan.synchronisation,
            cache_bytes=plan.cache_bytes,
            adapt=settings.adapt,
            adapt_log=settings.adapt_log,
            deadline_s=settings.deadline_s,
            silence_s=settings.silence_s,
        )


class JobProcesses:
    """Servers, readers and the cacher; a context manager that starts and ends them.

    Parameters
    ----------
    read_with : command of readers in place of headrace's own: a script whose `fit` serves batches.
    environment : changes to the environment of such readers.
    readers_restart : whether `restart_reader` is called for a reader that is lost.

    Attributes
    ----------
    options, hosts, readers_restart : as above.
    roles : the processes, to which trainers can be added.
    secret : of the job.
    address : of the cacher.

    Raises
    ------
    CommunicationError : on entry, naming a process that did not start, and its last lines.
    """

    def __init__(
        self,
        options: JobOptions,
        hosts: JobHosts,
        *,
        read_with: Sequence[str] | None = None,
        environment: Mapping[str, str | None] | None = None,
        readers_restart: bool = False,
    ) -> None:
        self.options = options
        self.hosts = hosts
        self.readers_restart = readers_restart
        # a script that reads loads its data before it serves, as trainers do before they join
        self._start_s = _START_S if read_with is None else max(_START_S, options.deadline_s)
        self.secret = secrets.token_hex(32)
        self.address = ""
        self._serving: Mapping[str, tuple[RoleHost, ...]] = {
            "server": hosts.servers,
            "reader": hosts.readers,
            "cacher": (hosts.cacher,),
        }
        argv = {"reader": read_with} if read_with is not None else {}
        env = {**(environment or {}), "HEADRACE_EMBEDDINGS_ROLE": "reader"}
        self.roles: Roles[ProcessKey] = Roles(
            {
                (kind, number): Role(
                    name=name_of((kind, number)),
                    argv=argv.get(kind, _PROCESS),
                    start=host.start,
                    env=env if kind in argv else {},
                    streams=MESSAGES,
                    beside_prints=kind in argv,
                )
                for kind, of_kind in self._serving.items()
                for number, host in enumerate(of_kind)
            }
        )

    def __enter__(self) -> Self:
        self.roles.__enter__()
        try:
            folder = None if self.options.folder is None else str(self.options.folder.resolve())
            log = self.options.adapt_log
            for key in self.keys_of("server"):
                self._send_settings(key, {"folder": folder, "of_host": self._servers_beside(key)})
            for key in self.keys_of("reader"):
                self._send_settings(key, {})
            servers, readers = self._addresses("server", "reader")
            options = {
                "servers": servers,
                "readers": readers,
                "trainers": len(self.hosts.trainers),
                "lookahead": self.options.lookahead,
                "prefetch": self.options.prefetch,
                "synchronisation": self.options.synchronisation.value,
                "folder": folder,
                "silence_s": self.options.silence_s,
                "ideal": self.options.ideal,
                "commit_every": 0 if folder is None else self.options.commit_every,
                "adapt": self.options.adapt,
                "equal_shares": self.options.equal_shares,
                "adapt_log": None if log is None else str(log.resolve()),
                "readers_restart": self.readers_restart,
            }
            self._send_settings(("cacher", 0), options)
            ((self.address,),) = self._addresses("cacher")
            for kind in ("server", "reader"):
                for key in self.keys_of(kind):
                    self.let_attend(key)
        except BaseException:
            self.roles.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.roles.end()

    def keys_of(self, kind: str) -> list[ProcessKey]:
        """Return the keys of the processes of a kind that serves."""
        return [(kind, number) for number in range(len(self._serving[kind]))]

    def let_attend(self, key: ProcessKey) -> None:
        """Let a server or reader that has told its address send the cacher signs of life."""
        self.roles.send(key, {"cacher": self.address})

    def restart_reader(self, key: ProcessKey) -> None:
        """Start another process in place of a reader's, which is ended if it lives.

        Raises
        ------
        CommunicationError : its host starts none.
        """
        name = name_of(key)
        self.roles.end([key], grace_s=0.0)  # by SIGKILL, which ends a stopped one, too
        try:
            self.roles.restart(key)
        except OSError as error:
            raise CommunicationError(f"{name}: cannot be started again: {error}") from error
        self._send_settings(key, {})

    def _servers_beside(self, key: ProcessKey) -> int:
        """Return the number of servers on the host of one, itself included."""
        addresses = [host.address for host in self._serving["server"]]
        return addresses.count(addresses[key[1]])

    def _send_settings(self, key: ProcessKey, options: Mapping[str, Any]) -> None:
        kind, number = key
        hosts = self._serving[kind]
        settings = RoleSettings(
            kind=kind,
            number=number,
            count=len(hosts),
            host=hosts[number].address,
            deadline_s=self.options.deadline_s,
            secret=self.secret,
            options=options,
        )
        self.roles.send(key, settings.to_message())

    def _addresses(self, *kinds: str) -> list[list[str]]:
        """Wait for the addresses of processes, by kind and number."""
        awaited = [key for kind in kinds for key in self.keys_of(kind)]
        addresses: dict[ProcessKey, str] = {}
        until = time.monotonic() + self._start_s
        while len(addresses) < len(awaited):
            try:
                key, message = self.roles.receive(max(0.0, until - time.monotonic()))
            except queue.Empty:
                late = ", ".join(name_of(key) for key in awaited if key not in addresses)
                raise CommunicationError(
                    f"{_STARTING} is stuck: no address of {late} within {self._start_s:g} s"
                ) from None
            if message is None and self.roles.exit_code(key) == 0:
                raise CommunicationError(
                    f"{_STARTING} failed: {name_of(key)} ended before it served: a script that "
                    "reads has to call headrace.embeddings.fit"
                )
            if message is None or "error" in message:
                errors = {} if message is None else {key: message["error"]}
                raise self.roles.failure(_STARTING, errors)
            if "address" in message:
                addresses[key] = message["address"]
        return [[addresses[key] for key in self.keys_of(kind)] for kind in kinds]


def key_of(name: str) -> ProcessKey:
    """Return the process that has a name; see `name_of`."""
    kind, _, number = name.partition(" ")
    return kind, int(number or 0)


def name_of(key: ProcessKey) -> str:
    """Return the name of a process, for errors: "server 0"."""
    kind, number = key
    return kind if kind == "cacher" else f"{kind} {number}"
