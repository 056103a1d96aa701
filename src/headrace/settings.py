"""Settings from the environment, read here only: every variable is a documented field."""

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import InputError

MEASURE = ("auto", "off", "always")
LOG_LEVELS = ("debug", "info", "warning", "error")
_PREFIX = "HEADRACE_"
_MAX_CHANNELS = 64
_MAX_THREADS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked settings from the environment.

    Attributes
    ----------
    plan_book : HEADRACE_PLAN_BOOK, file with the plan book to choose plans from; unset: templates.
    deadline_s : HEADRACE_DEADLINE_S, timeout of any wait in seconds (above 0), as torch's default.
    channels : HEADRACE_CHANNELS, connections per pair of ranks, 1 to 64. Calls of over 256 KiB
        between hosts are spread evenly over them: for networks that limit each connection.
    threads : HEADRACE_THREADS, limit of this rank's threads that move a group's bytes concurrently,
        1 to 64: for hosts with idle processors, where one thread is too slow for all connections.
    socket_interface : HEADRACE_SOCKET_IFNAME, name of the network interface to listen on, by IPv4
        if all ranks' interfaces have such an address, else by IPv6; unset: the one that routes to
        the rendezvous.
    pace : HEADRACE_PACE, pacing file of the loopback testbed: rate limits of the transport where
        the kernel cannot shape traffic. Set by ``headrace testbed``.
    testbed_address : HEADRACE_TESTBED_ADDRESS, this host's address in a testbed. Set by
        ``headrace testbed``.
    log_level : HEADRACE_LOG_LEVEL, one of debug, info, warning, error: lowest level that the
        backend writes to stderr. An application that sets up logging overrides it.
    shared_memory : HEADRACE_SHARED_MEMORY, on or off: whether ranks of one host move data through
        shared memory (else through TCP).
    tls : HEADRACE_TLS, on or off: whether traffic between hosts is encrypted (TLS 1.3); the same
        on all ranks.
    measure : HEADRACE_MEASURE, whether the start of a job on several hosts without a plan book
        measures the network (some 10 s) and plans for it: auto (unless a profile of these hosts is
        cached and valid), always, or off. Rank 0's applies.
    cache : HEADRACE_CACHE, folder for profiles and plan books of such jobs; unset:
        ~/.cache/headrace.
    adapt : HEADRACE_ADAPT, on or off: whether plans are adapted to the network while the job runs,
        for jobs on several hosts with a plan book.
    adapt_log : HEADRACE_ADAPT_LOG, file to which rank 0 appends the events of adaptation, as lines
        of JSON.
    metrics : HEADRACE_METRICS, destination of metrics for Prometheus: a file ("{rank}" in its name
        stands for the rank) or a port on 127.0.0.1, to which the rank is added; unset: none.
    recorder_entries : TORCH_FR_BUFFER_SIZE, calls that torch's flight recorder keeps; those of
        headrace are recorded if it is set, and above 0.
    nccl_recorder_entries : TORCH_NCCL_TRACE_BUFFER_SIZE, the same where the former is not set.
    nan_check : TORCH_DIST_NAN_CHECK, "1" for torch to check the inputs of every call for NaN.
    rank, world_size : RANK, WORLD_SIZE as torchrun sets them; None outside.
    """

    plan_book: Path | None = None
    deadline_s: float = 1800.0
    channels: int = 1
    threads: int = 1
    socket_interface: str | None = None
    pace: Path | None = None
    testbed_address: str | None = None
    log_level: str = "warning"
    shared_memory: bool = True
    tls: bool = False
    measure: str = "auto"
    cache: Path | None = None
    adapt: bool = True
    adapt_log: Path | None = None
    metrics: Path | int | None = None
    recorder_entries: int | None = None
    nccl_recorder_entries: int | None = None
    nan_check: bool = False
    rank: int | None = None
    world_size: int | None = None

    @property
    def cache_folder(self) -> Path | None:
        """Folder of cached profiles and plan books; None if this user has no home folder."""
        if self.cache is not None:
            return self.cache
        try:
            return Path.home() / ".cache" / "headrace"
        except RuntimeError:  # HOME is not set, and there is no entry for this user id
            return None

    @property
    def observed(self) -> bool:
        """Return whether torch's own tools observe every call."""
        recorded = self.recorder_entries
        if recorded is None:
            recorded = self.nccl_recorder_entries
        return bool(recorded) or self.nan_check

    @property
    def paced_address(self) -> str | None:
        """Address that stands for this host where several share loopback, else None."""
        return self.testbed_address if self.pace is not None else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `environment` (default: this process's).

        A variable that is set but empty counts as not set. An unknown one that starts with
        HEADRACE_ gives a warning, once per process.

        Raises
        ------
        InputError : naming the variable, what was found and what is allowed.
        """
        source = os.environ if environment is None else environment
        _warn_of_unknown(name for name, text in source.items() if text.strip())
        found = {
            field: parse(variable, text)
            for field, (variable, parse) in _VARIABLES.items()
            if (text := source.get(variable, "").strip())
        }
        settings = cls(**found)  # pyright: ignore[reportArgumentType]  (the table types each field)
        if settings.rank is not None and settings.world_size is not None:
            _check_rank(settings.rank, settings.world_size)
        return settings


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment for a child, with `changes` applied (None: removed)."""
    environment = dict(os.environ)
    for variable, value in (changes or {}).items():
        if value is None:
            environment.pop(variable, None)
        else:
            environment[variable] = value
    return environment


def _warn_of_unknown(names: Iterable[str]) -> None:
    known = [*(variable for variable, _ in _VARIABLES.values() if _is_ours(variable)), *_MARKS]
    for name in sorted(filter(_is_ours, names)):
        if name in known or name in _warned:
            continue
        _warned.add(name)
        near = difflib.get_close_matches(
            name[len(_PREFIX) :].upper(), [each[len(_PREFIX) :] for each in known], n=1
        )
        remedy = (
            f"did you mean {_PREFIX}{near[0]}?" if near else f"known are {', '.join(sorted(known))}"
        )
        warnings.warn(
            f"the environment variable {name} is unknown to headrace and ignored: {remedy}",
            stacklevel=4,
        )


def _is_ours(variable: str) -> bool:
    return variable.upper().startswith(_PREFIX)


def _whole(low: int, high: int | None = None) -> Callable[[str, str], int]:
    allowed = f"a whole number of at least {low}" if high is None else f"{low} to {high}"

    def parse(variable: str, text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < low or (high and int(text) > high):
            raise InputError(f"{variable} is {text!r}, needs {allowed}")
        return int(text)

    return parse


def _seconds(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    # a day-long upper limit would be arbitrary; infinity would break "every wait has a deadline"
    if not 0 < value < float("inf"):
        raise InputError(f"{variable} is {text!r}, needs a finite number of seconds above 0")
    return value


def _file(variable: str, text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise InputError(f"{variable} is {text!r}, needs the path of a file that exists")
    return path


def _interface(variable: str, text: str) -> str:
    # 15 is IFNAMSIZ - 1; the kernel allows any byte but these
    if len(text) > 15 or re.search(r"[\s/]", text):
        raise InputError(f"{variable} is {text!r}, needs a network interface's name, such as eth0")
    return text


def _log_level(variable: str, text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise InputError(f"{variable} is {text!r}, needs one of {', '.join(LOG_LEVELS)}")
    return text.lower()


def _measure(variable: str, text: str) -> str:
    if text.lower() not in MEASURE:
        raise InputError(f"{variable} is {text!r}, needs one of {', '.join(MEASURE)}")
    return text.lower()


def _folder(variable: str, text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{variable} is {text!r}, needs a path without '~': {error}") from None
    if path.exists() and not path.is_dir():
        raise InputError(f"{variable} is {text!r}, needs a folder, or a path where none is yet")
    return path


def _text(_variable: str, text: str) -> str:
    return text


def _switch(variable: str, text: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise InputError(f"{variable} is {text!r}, needs on or off")
    return text.lower() == "on"


def _is_one(_variable: str, text: str) -> bool:
    return text == "1"


def _target(variable: str, text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise InputError(
            f"{variable} is {text!r}, needs the path of a file in a folder that exists"
        )
    return path


def _file_or_port(variable: str, text: str) -> Path | int:
    if not re.fullmatch(r"\d+", text):
        return _target(variable, text)
    if not 1024 <= int(text) <= 65535:
        raise InputError(f"{variable} is {text!r}, needs a port from 1024 to 65535, or a file")
    return int(text)


def _check_rank(rank: int, world_size: int) -> None:
    if rank >= world_size:
        raise InputError(f"RANK is '{rank}', needs 0 to {world_size - 1} (WORLD_SIZE - 1)")


_VARIABLES: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "plan_book": ("HEADRACE_PLAN_BOOK", _file),
    "deadline_s": ("HEADRACE_DEADLINE_S", _seconds),
    "channels": ("HEADRACE_CHANNELS", _whole(1, _MAX_CHANNELS)),
    "threads": ("HEADRACE_THREADS", _whole(1, _MAX_THREADS)),
    "socket_interface": ("HEADRACE_SOCKET_IFNAME", _interface),
    "pace": ("HEADRACE_PACE", _file),
    "testbed_address": ("HEADRACE_TESTBED_ADDRESS", _text),
    "log_level": ("HEADRACE_LOG_LEVEL", _log_level),
    "measure": ("HEADRACE_MEASURE", _measure),
    "cache": ("HEADRACE_CACHE", _folder),
    "shared_memory": ("HEADRACE_SHARED_MEMORY", _switch),
    "tls": ("HEADRACE_TLS", _switch),
    "adapt": ("HEADRACE_ADAPT", _switch),
    "adapt_log": ("HEADRACE_ADAPT_LOG", _target),
    "metrics": ("HEADRACE_METRICS", _file_or_port),
    "recorder_entries": ("TORCH_FR_BUFFER_SIZE", _whole(0)),
    "nccl_recorder_entries": ("TORCH_NCCL_TRACE_BUFFER_SIZE", _whole(0)),
    "nan_check": ("TORCH_DIST_NAN_CHECK", _is_one),
    "rank": ("RANK", _whole(0)),
    "world_size": ("WORLD_SIZE", _whole(1)),
}
"""Field of `Settings` -> (environment variable, parser of its text)."""

_MARKS = ("HEADRACE_TESTBED_HOST", "HEADRACE_TEST_THREADS")
"""Set by ``headrace testbed`` for scripts on its hosts, and for native tests: not read here."""

_warned: set[str] = set()
"""Unknown variables that this process has warned about."""
