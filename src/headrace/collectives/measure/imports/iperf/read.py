"""Parser of one result of ``iperf3 -J``, as written by the client or the server."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headrace import fields
from headrace.errors import InputError
from headrace.files import read_text

_NAMED = re.compile(r"(?P<client>.+)-to-(?P<server>.+)")
_MAPPED = "::ffff:"  # prefix of the IPv4 peer of an IPv6 socket
_MOST_BITS_PER_S = 1e15
_LEAST_BITS_PER_S = 1.0
_MOST_SECONDS = 1e10  # since 1970: some day in 2286
_MOST_US = 1e9
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class IperfRun:
    """One run between two hosts.

    Attributes
    ----------
    client, server : their names.
    addresses : theirs, client's first.
    bytes_per_s : (source, destination) -> received rate.
    rtt_us : the least round trip of a sender's kernel; None if not in the file.
    at, took_s : start, in seconds since 1970 (0 if not in the file), and length.
    """

    client: str
    server: str
    addresses: tuple[str, str]
    bytes_per_s: Mapping[tuple[str, str], float]
    rtt_us: float | None
    at: float
    took_s: float


def read_run(file: str | Path) -> IperfRun:
    """Read one result of ``iperf3 -J``.

    Raises
    ------
    InputError : naming the file and the field, what was found and what is needed.
    """
    path = Path(file)
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}), needs the output of iperf3 -J") from error
    return _Reader(path, found).run()


def read_round_trips(file: str | Path) -> dict[tuple[str, str], float]:
    """Read lines ``host,host,us``: round trips as ping gives them; a heading may come first.

    Raises
    ------
    InputError : naming the file and the line.
    """
    path = Path(file)
    found: dict[tuple[str, str], float] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip() or (number == 1 and cells[-1] in ("us", "rtt_us")):
            continue
        try:
            a, b, text = cells
            time_us = float(text)
        except ValueError:
            time_us, a, b = 0.0, "", ""
        if not (a and b and a != b and 0 < time_us <= _MOST_US):
            raise InputError(
                f"{path}: line {number} is {line!r}, needs two hosts and their round trip in us, "
                "as in 'host0,host1,85'"
            )
        found[a, b] = time_us
    return found


class _Reader:
    """Reader of the fields of one file."""

    def __init__(self, path: Path, found: Any) -> None:
        self.path = path
        self.found = found

    def run(self) -> IperfRun:
        if (error := self.at("error", default=None)) is not None:
            raise InputError(f"{self.path}: field 'error': the run failed: {error!s:.200}")
        protocol = self.text("start", "test_start", "protocol", default="TCP")
        if protocol != "TCP":
            raise InputError(
                f"{self.path}: field 'start.test_start.protocol' is {protocol!r}, needs 'TCP': "
                "the rate of others is the one configured at the sender"
            )
        local, remote = (
            self.text("start", "connected", 0, end).removeprefix(_MAPPED)
            for end in ("local_host", "remote_host")
        )
        if local == remote:
            raise InputError(
                f"{self.path}: field 'start.connected[0]' joins {local} with itself, "
                "needs two hosts"
            )
        by_server = self.at("start", "accepted_connection", default=None) is not None
        addresses = (remote, local) if by_server else (local, remote)
        client, server = self.names(addresses)
        forward, back = (client, server), (server, client)
        first = back if self.flag("reverse") else forward
        rates = {first: self.rate("")}
        if self.flag("bidir"):
            rates[back] = self.rate("_bidir_reverse")
        return IperfRun(
            client=client,
            server=server,
            addresses=addresses,
            bytes_per_s=rates,
            rtt_us=self.round_trip(),
            at=self.number("start", "timestamp", "timesecs", most=_MOST_SECONDS),
            took_s=self.number("end", "sum_received", "seconds", most=_MOST_SECONDS),
        )

    def names(self, addresses: tuple[str, str]) -> tuple[str, str]:
        named = _NAMED.fullmatch(self.path.stem)
        if named is None:
            return addresses
        if named["client"] == named["server"]:
            raise InputError(
                f"{self.path}: the file's name is of one host, needs CLIENT-to-SERVER.json"
            )
        return named["client"], named["server"]

    def rate(self, suffix: str) -> float:
        """Return bytes per second received; where the file has none, sent."""
        for name in (f"sum_received{suffix}", f"sum_sent{suffix}"):
            bits = self.number("end", name, "bits_per_second", most=_MOST_BITS_PER_S)
            if bits >= _LEAST_BITS_PER_S:
                return bits / 8
        raise InputError(
            f"{self.path}: fields 'end.sum_received{suffix}.bits_per_second' and "
            f"'end.sum_sent{suffix}.bits_per_second' are missing or 0, needs one above 0"
        )

    def round_trip(self) -> float | None:
        """Return the least round trip of a sender's kernel, in us; None if the file has none.

        A file has it for the end that wrote it, and 0 for the other.
        """
        streams = self.at("end", "streams", default=[])
        if not isinstance(streams, list):
            raise InputError(f"{self.path}: field 'end.streams' is {streams!r:.80}, needs a list")
        found: list[float] = []
        for index in range(len(streams)):  # pyright: ignore[reportUnknownArgumentType]
            for name in ("min_rtt", "mean_rtt"):  # depends on the version
                time_us = self.number("end", "streams", index, "sender", name, most=_MOST_US)
                if time_us > 0:
                    found.append(time_us)
                    break
        return min(found, default=None)

    def flag(self, name: str) -> bool:
        return self.number("start", "test_start", name, most=1) != 0

    def text(self, *path: str | int, default: Any = _REQUIRED) -> str:
        found = self.at(*path, default=default)
        if not isinstance(found, str) or not found:
            raise InputError(f"{self.path}: field '{_name(path)}' is {found!r}, needs a text")
        return found

    def number(self, *path: str | int, most: float) -> float:
        """Return a number of at least 0; 0 where there is none."""
        found = self.at(*path, default=0)
        try:
            value = fields.number(found)
        except TypeError as error:
            raise InputError(f"{self.path}: field '{_name(path)}': {error}") from error
        if not 0 <= value <= most:
            raise InputError(
                f"{self.path}: field '{_name(path)}' is {found!r:.80}, needs 0 to {most:g}"
            )
        return value

    def at(self, *path: str | int, default: Any = _REQUIRED) -> Any:
        """Return the value at `path`; `default` where a part of it is missing."""
        found = self.found
        for depth, key in enumerate(path):
            where = _name(path[:depth]) or "the whole"
            if isinstance(key, int):
                if not isinstance(found, list):
                    raise InputError(f"{self.path}: field '{where}' is {found!r:.80}, needs a list")
                missing = key >= len(found)  # pyright: ignore[reportUnknownArgumentType]
            else:
                if not isinstance(found, dict):
                    raise InputError(
                        f"{self.path}: field '{where}' is {found!r:.80}, needs an object"
                    )
                missing = key not in found
            if missing and default is _REQUIRED:
                raise InputError(
                    f"{self.path}: field '{_name(path[: depth + 1])}' is missing, needs the "
                    "output of iperf3 -J"
                )
            if missing:
                return default
            found = cast(Any, found)[key]
        return found


def _name(path: Sequence[str | int]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")
