"""Ranks, hosts, directed links with alpha-beta costs, and the capacities they share."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.errors import TopologyError
from headrace.facades import public_value
from headrace.fields import Field

BYTES_PER_MB = 1_000_000
"""One MB is 10^6 bytes everywhere: beta in us/MB is 10^12 / (bytes per second)."""

_T = TypeVar("_T")

ALPHA_US = (1e-9, 1e12)
BETA_US_PER_MB = (1e-9, 1e15)
"""Least and largest cost of a link: from a million exabytes a second to a byte in a quarter of an
hour. No network exceeds it, and sums, squares and ratios of costs stay finite and precise."""


def beta_from_bytes_per_s(bytes_per_s: float) -> float:
    """Return beta (us/MB) of a link that moves `bytes_per_s` payload bytes a second.

    Raises
    ------
    TopologyError : the rate is not above 0.
    """
    if not bytes_per_s > 0:
        raise TopologyError(f"the rate of a link is {bytes_per_s:g} bytes/s, needs more than 0")
    return 1e6 * BYTES_PER_MB / bytes_per_s


@stored_value("headrace.topology", TopologyError)
class Link:
    """A directed link between two ranks: b bytes take ``alpha_us + beta_us_per_mb * b/10^6``."""

    src: int
    dst: int
    alpha_us: float
    beta_us_per_mb: float


@stored_value("headrace.topology", TopologyError)
class SharedCapacity:
    """A NIC, uplink or switch port: all of `links` (indices) together have the rate one over beta.

    With `at_least` they have that or more: measuring never reached the limit, so beta is from a
    lower bound of the rate. Plans use the bound.
    """

    name: str
    links: tuple[int, ...]
    beta_us_per_mb: float
    at_least: bool = False


@stored_value("headrace.topology", TopologyError)
class Switch:
    """A switch that `links` (indices) pass through: switch-hyperedges of sketches bind to it.

    It costs nothing by itself (ports are shared capacities). With `multicast` it can copy one
    incoming message to several ports.
    """

    name: str
    links: tuple[int, ...]
    multicast: bool = False


@public_value("headrace.topology")
class LinkColumns:
    """Columns of a topology's links, by link index: int64 ranks, float64 us and us/MB."""

    src: np.ndarray
    dst: np.ndarray
    alpha_us: np.ndarray
    beta_us_per_mb: np.ndarray


@stored_value("headrace.topology", TopologyError, repr=False, slots=False)
class Topology(
    ArtifactValue, kind="topology", schema=1, command="headrace topology preset or import"
):
    """Ranks on hosts, the directed links between them and their costs.

    Attributes
    ----------
    hosts : host names, distinct.
    rank_host : the host index of every rank.
    links : directed links between ranks.
    shared : capacities that several links use together.
    addresses : listening address of each host's ranks, if other than its name; else empty.
    switches : switches that links pass through, where known.

    Raises
    ------
    TopologyError : naming the field, what was found and what is allowed.
    """

    name: str
    hosts: tuple[str, ...]
    rank_host: tuple[int, ...]
    links: tuple[Link, ...]
    shared: tuple[SharedCapacity, ...] = ()
    addresses: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()

    def __post_init__(self) -> None:
        if len(self.addresses) not in (0, len(self.hosts)):
            raise TopologyError(
                f"addresses has {len(self.addresses)} entries, needs none or one for each of the "
                f"{len(self.hosts)} hosts"
            )
        if not self.rank_host:
            raise TopologyError("rank_host is empty, needs at least one rank")
        if len(set(self.hosts)) != len(self.hosts):
            raise TopologyError(f"hosts has duplicates: {fields.shown(list(self.hosts))}")
        for rank, host in enumerate(self.rank_host):
            if not 0 <= host < len(self.hosts):
                raise TopologyError(
                    f"rank_host[{rank}] is {host}, needs 0 to {len(self.hosts) - 1}"
                )
        # Valid topologies are recognized in bulk; the loops only name errors.
        if not _sound_links(self.links, self.ranks):
            _explain_links(self.links, self.ranks)
        for field, members in (("shared", self.shared), ("switches", self.switches)):
            if not _sound_members([member.links for member in members], len(self.links)):
                _explain_members(field, members, len(self.links))
        for index, shared in enumerate(self.shared):
            _check_cost(
                f"shared[{index}].beta_us_per_mb", shared.beta_us_per_mb, BETA_US_PER_MB, "us/MB"
            )

    @property
    def description(self) -> str:
        """Name and numbers of ranks, hosts, links and shared capacities."""
        shared = f", {len(self.shared)} shared capacities" if self.shared else ""
        return (
            f"{self.name}, {self.ranks} ranks on {len(self.hosts)} hosts, "
            f"{len(self.links)} links{shared}"
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Used by caches on every lookup, and there may be thousands of links.
        return hash((self.name, self.hosts, self.rank_host, self.links, self.shared))

    def __getstate__(self) -> dict[str, Any]:
        # String hashes differ between processes.
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_host)

    @cached_property
    def link_index(self) -> Mapping[tuple[int, int], int]:
        """(src, dst) -> index into `links`."""
        return {(link.src, link.dst): index for index, link in enumerate(self.links)}

    @cached_property
    def columns(self) -> LinkColumns:
        """The links as columns (read-only)."""
        columns = LinkColumns(
            src=np.array([link.src for link in self.links], np.int64),
            dst=np.array([link.dst for link in self.links], np.int64),
            alpha_us=np.array([link.alpha_us for link in self.links], np.float64),
            beta_us_per_mb=np.array([link.beta_us_per_mb for link in self.links], np.float64),
        )
        for column in (columns.src, columns.dst, columns.alpha_us, columns.beta_us_per_mb):
            column.flags.writeable = False
        return columns

    @property
    def digest(self) -> str:
        """SHA-256 of the content, by which plans and bounds identify their topology."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return self.to_artifact().digest

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        return self.to_head(), {}

    def to_head(self) -> dict[str, Any]:
        """Return the JSON form that `from_head` reads."""
        addresses = {"addresses": list(self.addresses)} if self.addresses else {}
        switches = [
            {"name": s.name, "links": list(s.links), "multicast": s.multicast}
            for s in self.switches
        ]
        return {
            "name": self.name,
            "hosts": list(self.hosts),
            **addresses,
            "rank_host": list(self.rank_host),
            "links": [[k.src, k.dst, k.alpha_us, k.beta_us_per_mb] for k in self.links],
            "shared": [
                {
                    "name": s.name,
                    "links": list(s.links),
                    "beta_us_per_mb": s.beta_us_per_mb,
                    # only where true: keeps the digests of earlier files
                    **({"at_least": True} if s.at_least else {}),
                }
                for s in self.shared
            ],
            **({"switches": switches} if switches else {}),
        }

    @classmethod
    def from_head(cls, head: Mapping[str, Any], source: str = "topology") -> "Topology":
        """Parse the JSON form.

        Raises
        ------
        TopologyError : naming the field, what was found and what is allowed.
        """
        document = Field(head, source, TopologyError)
        names = partial(_all, fields.text)
        parts: dict[str, Any] = {
            "name": document.at("name").text(),
            "hosts": document.at("hosts").read(names, "a list of names"),
            "rank_host": document.at("rank_host").read(_indices, "a list of host indices"),
            "links": document.at("links").read(
                partial(_all, _link), "rows [src, dst, alpha_us, beta_us_per_mb]"
            ),
            "shared": document.at("shared", default=()).read(
                partial(_all, _shared), "objects with name, links, beta_us_per_mb"
            ),
            "addresses": document.at("addresses", default=()).read(names, "a list of addresses"),
            "switches": document.at("switches", default=()).read(
                partial(_all, _switch), "objects with name, links, multicast"
            ),
        }
        try:
            return cls(**parts)
        except TopologyError as error:
            raise TopologyError(f"{source}: {error}") from error

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "topology") -> "Topology":
        """Rebuild a topology; see `from_head`."""
        return cls.from_head(artifact.head, source)


def _all(read: Callable[[Any], _T], node: Any) -> tuple[_T, ...]:
    return tuple(map(read, fields.items(node)))


def _indices(node: Any) -> tuple[int, ...]:
    return _all(fields.integer, node)


def _link(node: Any) -> Link:
    src, dst, alpha, beta = fields.items(node)
    return Link(
        src=fields.integer(src),
        dst=fields.integer(dst),
        alpha_us=fields.number(alpha),
        beta_us_per_mb=fields.number(beta),
    )


def _shared(node: Any) -> SharedCapacity:
    row = fields.table(node)
    return SharedCapacity(
        name=fields.text(row["name"]),
        links=_indices(row["links"]),
        beta_us_per_mb=fields.number(row["beta_us_per_mb"]),
        at_least=fields.boolean(row.get("at_least", False)),
    )


def _switch(node: Any) -> Switch:
    row = fields.table(node)
    return Switch(
        name=fields.text(row["name"]),
        links=_indices(row["links"]),
        multicast=fields.boolean(row["multicast"]),
    )


def _sound_links(links: tuple[Link, ...], ranks: int) -> bool:
    try:
        ends = np.array([(link.src, link.dst) for link in links], np.int64).reshape(-1, 2)
        costs = np.array([(link.alpha_us, link.beta_us_per_mb) for link in links]).reshape(-1, 2)
    except (OverflowError, TypeError, ValueError):
        return False
    if costs.dtype != np.float64 and costs.dtype != np.int64:
        return False
    return bool(
        np.all((ends >= 0) & (ends < ranks))
        and np.all(ends[:, 0] != ends[:, 1])
        and _distinct(ends[:, 0] * ranks + ends[:, 1])
        and np.all(((costs >= _LEAST) & (costs <= _MOST)) | (costs == _ALSO))
    )


_LEAST = np.array([ALPHA_US[0], BETA_US_PER_MB[0]])
_MOST = np.array([ALPHA_US[1], BETA_US_PER_MB[1]])
_ALSO = np.array([0.0, np.nan])  # an alpha of 0; no value equals nan


def _distinct(values: np.ndarray) -> bool:
    # Sorted, as np.unique hashes integers, which takes ten times as long on regular ones.
    return bool(np.all(np.diff(np.sort(values))))


def _explain_links(links: tuple[Link, ...], ranks: int) -> None:
    seen: set[tuple[int, int]] = set()
    for index, link in enumerate(links):
        for end, rank in (("src", link.src), ("dst", link.dst)):
            if not 0 <= rank < ranks:
                raise TopologyError(f"links[{index}].{end} is {rank}, needs 0 to {ranks - 1}")
        if link.src == link.dst:
            raise TopologyError(f"links[{index}] joins rank {link.src} to itself")
        if (link.src, link.dst) in seen:
            raise TopologyError(f"links[{index}] repeats {link.src} -> {link.dst}")
        seen.add((link.src, link.dst))
        _check_cost(f"links[{index}].alpha_us", link.alpha_us, ALPHA_US, "us")
        _check_cost(f"links[{index}].beta_us_per_mb", link.beta_us_per_mb, BETA_US_PER_MB, "us/MB")


def _sound_members(members: list[tuple[int, ...]], links: int) -> bool:
    if not members:
        return True
    try:
        flat = np.concatenate([np.array(some, np.int64) for some in members])
    except (OverflowError, TypeError, ValueError):
        return False
    owner = np.repeat(np.arange(len(members)), [len(some) for some in members])
    if not np.all((flat >= 0) & (flat < links)):
        return False
    return _distinct(owner * max(links, 1) + flat)


def _explain_members(
    field: str, members: tuple[SharedCapacity, ...] | tuple[Switch, ...], links: int
) -> None:
    for index, member in enumerate(members):
        where = f"{field}[{index}] ({member.name})"
        if len(set(member.links)) != len(member.links):
            raise TopologyError(
                f"{where}: links {fields.shown(list(member.links))} repeats a link, needs each at "
                "most once"
            )
        for link in member.links:
            if not 0 <= link < links:
                raise TopologyError(f"{where}: link {link}, needs 0 to {links - 1}")


def _check_cost(name: str, value: float, limits: tuple[float, float], unit: str) -> None:
    low, high = limits
    may_be_zero = limits is ALPHA_US
    if not (low <= value <= high or (value == 0 and may_be_zero)):
        zero = "0 or " if may_be_zero else ""
        raise TopologyError(
            f"{name} is {value!r}, needs {zero}{low:g} to {high:g} {unit}: no network's cost is "
            "beyond, and predictions with it would not be finite or precise"
        )
