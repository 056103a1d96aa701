"""Settings from the environment, read here only: every variable is a documented field.

A field is annotated with its variable and the parser of that variable's text. A capability's own
section is found by name: a class below `Settings`, as ``SETTINGS`` in its module ``settings``.
"""

import difflib
import functools
import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Self, get_type_hints

from headrace.errors import InputError
from headrace.facades import public_value
from headrace.kinds import packages_with
from headrace.units import LONGEST_S

__all__ = [
    "Parser",
    "Settings",
    "child_environment",
    "drop_width_of_zero",
    "existing_file",
    "on_or_off",
    "one_of",
    "read_local_data_sets",
    "sections",
    "whole_number",
    "writable_file",
]

Parser = Callable[[str, str], object]
"""Returns the value of (variable, its text); raises InputError naming both and what is allowed."""

_PREFIX = "HEADRACE_"
_DEADLINE_S = 1800.0  # as torch's default


def whole_number(low: int, high: int | None = None) -> Parser:
    """Return a parser of whole numbers from `low` to `high` (None: any)."""
    allowed = f"a whole number of at least {low}" if high is None else f"{low} to {high}"

    def parse(variable: str, text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < low or (high and int(text) > high):
            raise InputError(f"{variable} is {text!r}, needs {allowed}")
        return int(text)

    return parse


def one_of(*words: str) -> Parser:
    """Return a parser of `words`, in lower or upper case."""

    def parse(variable: str, text: str) -> str:
        if text.lower() not in words:
            raise InputError(f"{variable} is {text!r}, needs one of {', '.join(words)}")
        return text.lower()

    return parse


def on_or_off(variable: str, text: str) -> bool:
    """Parse a switch."""
    if text.lower() not in ("on", "off"):
        raise InputError(f"{variable} is {text!r}, needs on or off")
    return text.lower() == "on"


def existing_file(variable: str, text: str) -> Path:
    """Parse the path of a file to read."""
    path = Path(text)
    if not _holds(path.is_file):
        raise InputError(f"{variable} is {text!r}, needs the path of a file that exists")
    return path


def writable_file(variable: str, text: str) -> Path:
    """Parse the path of a file to write."""
    path = Path(text)
    if not _holds(path.parent.is_dir):
        raise InputError(
            f"{variable} is {text!r}, needs the path of a file in a folder that exists"
        )
    return path


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # a name that no file can have: too long
        return False


def _seconds(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    # a day-long upper limit would be arbitrary; infinity would break "every wait has a deadline"
    if not 0 < value < float("inf"):
        raise InputError(f"{variable} is {text!r}, needs a finite number of seconds above 0")
    return min(value, LONGEST_S)  # locks and clocks take no more than ten times that


def _interface(variable: str, text: str) -> str:
    # 15 is IFNAMSIZ - 1; the kernel allows any byte but these
    if len(text) > 15 or re.search(r"[\s/]", text):
        raise InputError(f"{variable} is {text!r}, needs a network interface's name, such as eth0")
    return text


def _folder(variable: str, text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{variable} is {text!r}, needs a path without '~': {error}") from None
    if _holds(path.exists) and not _holds(path.is_dir):
        raise InputError(f"{variable} is {text!r}, needs a folder, or a path where none is yet")
    return path


def _text(_variable: str, text: str) -> str:
    return text


def _file_or_port(variable: str, text: str) -> Path | int:
    if not re.fullmatch(r"\d+", text):
        return writable_file(variable, text)
    if not 1024 <= int(text) <= 65535:
        raise InputError(f"{variable} is {text!r}, needs a port from 1024 to 65535, or a file")
    return int(text)


@public_value("headrace")
class Settings:
    """Checked settings from the environment that all capabilities share.

    Attributes
    ----------
    deadline_limit_s : HEADRACE_DEADLINE_S, longest timeout of any wait in seconds (above 0); more
        than 1e9 count as that; unset: torch's timeout of a group, and 1800 where there is none.
    socket_interface : HEADRACE_SOCKET_IFNAME, name of the network interface to listen on, by IPv4
        if all ranks' interfaces have such an address, else by IPv6; unset: the one that routes to
        the rendezvous.
    pace : HEADRACE_PACE, pacing file of the loopback testbed: rate limits of the transport where
        the kernel cannot shape traffic. Set by ``headrace testbed``.
    testbed_address : HEADRACE_TESTBED_ADDRESS, this host's address in a testbed. Set by
        ``headrace testbed``.
    log_level : HEADRACE_LOG_LEVEL, one of debug, info, warning, error: lowest level that the
        backend writes to stderr. An application that sets up logging overrides it.
    tls : HEADRACE_TLS, on or off: whether traffic between hosts is encrypted (TLS 1.3); the same
        on all ranks.
    cache : HEADRACE_CACHE, folder for what later jobs can use again, such as profiles and plan
        books; unset: ~/.cache/headrace.
    metrics : HEADRACE_METRICS, destination of metrics for Prometheus: a file ("{rank}" in its name
        stands for the rank) or a port on 127.0.0.1, to which the rank is added; unset: none.
    rank, world_size : RANK, WORLD_SIZE as torchrun sets them; None outside.
    """

    deadline_limit_s: Annotated[float | None, "HEADRACE_DEADLINE_S", _seconds] = None
    socket_interface: Annotated[str | None, "HEADRACE_SOCKET_IFNAME", _interface] = None
    pace: Annotated[Path | None, "HEADRACE_PACE", existing_file] = None
    testbed_address: Annotated[str | None, "HEADRACE_TESTBED_ADDRESS", _text] = None
    log_level: Annotated[str, "HEADRACE_LOG_LEVEL", one_of("debug", "info", "warning", "error")] = (
        "warning"
    )
    tls: Annotated[bool, "HEADRACE_TLS", on_or_off] = False
    cache: Annotated[Path | None, "HEADRACE_CACHE", _folder] = None
    metrics: Annotated[Path | int | None, "HEADRACE_METRICS", _file_or_port] = None
    rank: Annotated[int | None, "RANK", whole_number(0)] = None
    world_size: Annotated[int | None, "WORLD_SIZE", whole_number(1)] = None

    @property
    def deadline_s(self) -> float:
        """Timeout of a wait that has no other."""
        return _DEADLINE_S if self.deadline_limit_s is None else self.deadline_limit_s

    @property
    def cache_folder(self) -> Path | None:
        """Folder of what later jobs can use again; None if this user has no home folder."""
        if self.cache is not None:
            return self.cache
        try:
            return Path.home() / ".cache" / "headrace"
        except RuntimeError:  # HOME is not set, and there is no entry for this user id
            return None

    @property
    def paced_address(self) -> str | None:
        """Address that stands for this host where several share loopback, else None."""
        return self.testbed_address if self.pace is not None else None

    @classmethod
    @functools.cache
    def variables(cls) -> Mapping[str, tuple[str, Parser]]:
        """Return (environment variable, parser of its text) of every field, by its name."""
        hints = get_type_hints(cls, include_extras=True)
        return {field: hint.__metadata__ for field, hint in hints.items()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the settings from `environment` (default: this process's).

        A variable that is set but empty counts as not set. An unknown one that starts with
        HEADRACE_ gives a warning, once per process.

        Raises
        ------
        InputError : naming the variable, what was found and what is allowed.
        """
        source = os.environ if environment is None else environment
        # in one pass: os.environ encodes the name at each look-up, and every group reads settings
        texts = {name: text for name, raw in source.items() if (text := raw.strip())}
        variables = cls.variables()
        _warn_of_unknown(texts.keys() - {name for name, _ in variables.values()})
        parsed = {
            field: parse(name, texts[name])
            for field, (name, parse) in variables.items()
            if name in texts
        }
        settings = cls(**parsed)  # pyright: ignore[reportArgumentType]  (parsers type each field)
        if settings.rank is not None and settings.world_size is not None:
            _check_rank(settings.rank, settings.world_size)
        return settings


def sections() -> Iterator[type[Settings]]:
    """Yield the shared settings, and every capability's."""
    yield Settings
    for package in packages_with("settings"):
        yield importlib.import_module(f"headrace.{package}.settings").SETTINGS


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment for a child, with `changes` applied (None: removed)."""
    environment = dict(os.environ)
    for variable, value in (changes or {}).items():
        if value is None:
            environment.pop(variable, None)
        else:
            environment[variable] = value
    return environment


def read_local_data_sets() -> None:
    """Let Hugging Face's library of data sets fetch nothing where it is imported from here on."""
    os.environ["HF_DATASETS_OFFLINE"] = "1"


def drop_width_of_zero() -> None:
    """Drop a width of no columns, as some containers and editors set: Rich would print nothing."""
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and int(width) == 0:
        del os.environ["COLUMNS"]


def _warn_of_unknown(names: Iterable[str]) -> None:
    """Warn of those of `names` that start with HEADRACE_ and belong to no section."""
    unknown = {name for name in names if name.upper().startswith(_PREFIX)}.difference(_MARKS)
    if not unknown:  # the usual case needs no other section
        return
    read = {name for section in sections() for name, _ in section.variables().values()}
    variables = sorted(name for name in read.union(_MARKS) if name.startswith(_PREFIX))
    for name in sorted(unknown.difference(variables, _warned)):
        _warned.add(name)
        near = difflib.get_close_matches(
            name[len(_PREFIX) :].upper(), [variable[len(_PREFIX) :] for variable in variables], n=1
        )
        remedy = (
            f"did you mean {_PREFIX}{near[0]}?" if near else f"known are {', '.join(variables)}"
        )
        warnings.warn(
            f"the environment variable {name} is unknown to headrace and ignored: {remedy}",
            stacklevel=4,
        )


def _check_rank(rank: int, world_size: int) -> None:
    if rank >= world_size:
        raise InputError(f"RANK is '{rank}', needs 0 to {world_size - 1} (WORLD_SIZE - 1)")


_MARKS = ("HEADRACE_TESTBED_HOST", "HEADRACE_TEST_THREADS")
"""Set by ``headrace testbed`` for scripts on its hosts, and for native tests: not read here."""

_warned: set[str] = set()
"""Unknown variables that this process has warned about."""
