"""Parser of one result of ``iperf3 -J``, as written by the client or the server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace import fields
from headrace.errors import InputError
from headrace.fields import Field
from headrace.files import parse_json, read_text

_NAMED = re.compile(r"(?P<client>.+)-to-(?P<server>.+)")
_MAPPED = "::ffff:"  # prefix of the IPv4 peer of an IPv6 socket
_MOST_BITS_PER_S = 1e15
_LEAST_BITS_PER_S = 1.0
_MOST_SECONDS = 1e10  # since 1970: some day in 2286
_MOST_US = 1e9


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
    return _run(path, Field(parse_json(read_text(path), str(path)), str(path)))


def read_round_trips(file: str | Path) -> dict[tuple[str, str], float]:
    """Read lines ``host,host,us``: round trips as ping gives them; a heading may come first.

    Raises
    ------
    InputError : naming the file and the line.
    """
    path = Path(file)
    round_trips: dict[tuple[str, str], float] = {}
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
        round_trips[a, b] = time_us
    return round_trips


def _run(path: Path, result: Field) -> IperfRun:
    failed = result.at("error", default=None)
    if failed.found is not None:
        raise failed.fail(f"is set: the run failed: {failed.found!s:.200}")
    start, test = result.at("start"), result.at("start", "test_start", default={})
    protocol = test.at("protocol", default="TCP")
    if protocol.found != "TCP":
        raise protocol.wrong("'TCP': the rate of others is the one configured at the sender")
    connection = start.at("connected", 0)
    local, remote = (
        connection.at(end).text().removeprefix(_MAPPED) for end in ("local_host", "remote_host")
    )
    if local == remote:
        raise connection.fail(f"joins {local} with itself, needs two hosts")
    by_server = start.at("accepted_connection", default=None).found is not None
    addresses = (remote, local) if by_server else (local, remote)
    client, server = _names(path, addresses)
    forward, back = (client, server), (server, client)
    rates = {back if _number(test, "reverse", most=1) else forward: _rate(result, "")}
    if _number(test, "bidir", most=1):
        rates[back] = _rate(result, "_bidir_reverse")
    return IperfRun(
        client=client,
        server=server,
        addresses=addresses,
        bytes_per_s=rates,
        rtt_us=_round_trip(result),
        at=_number(start, "timestamp", "timesecs", most=_MOST_SECONDS),
        took_s=_number(result, "end", "sum_received", "seconds", most=_MOST_SECONDS),
    )


def _names(path: Path, addresses: tuple[str, str]) -> tuple[str, str]:
    named = _NAMED.fullmatch(path.stem)
    if named is None:
        return addresses
    if named["client"] == named["server"]:
        raise InputError(f"{path}: the file's name is of one host, needs CLIENT-to-SERVER.json")
    return named["client"], named["server"]


def _rate(result: Field, suffix: str) -> float:
    """Return bytes per second received; where the file has none, sent."""
    for name in (f"sum_received{suffix}", f"sum_sent{suffix}"):
        bits = _number(result, "end", name, "bits_per_second", most=_MOST_BITS_PER_S)
        if bits >= _LEAST_BITS_PER_S:
            return bits / 8
    raise InputError(
        f"{result.source}: fields 'end.sum_received{suffix}.bits_per_second' and "
        f"'end.sum_sent{suffix}.bits_per_second' are missing or 0, needs one above 0"
    )


def _round_trip(result: Field) -> float | None:
    """Return the least round trip of a sender's kernel, in us; None if the file has none.

    A file has it for the end that wrote it, and 0 for the other; its name depends on the version.
    """
    names = ("min_rtt", "mean_rtt")
    stream_us = [
        next(filter(None, (_number(stream, "sender", name, most=_MOST_US) for name in names)), 0.0)
        for stream in result.at("end", "streams", default=[]).items()
    ]
    return min(filter(None, stream_us), default=None)


def _number(within: Field, *path: str, most: float) -> float:
    """Return a number of at least 0; 0 where there is none."""
    field = within.at(*path, default=0)
    value = field.read(fields.number)
    if not 0 <= value <= most:
        raise field.wrong(f"0 to {most:g}")
    return value
