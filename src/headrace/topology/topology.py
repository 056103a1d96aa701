"""Ranks, hosts, directed links with alpha-beta costs, and the capacities they share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import headrace.artifact as artifact_io
from headrace import fields
from headrace.artifact import Artifact
from headrace.errors import TopologyError

BYTES_PER_MB = 1_000_000
"""One MB is 10^6 bytes everywhere: beta in us/MB is 10^12 / (bytes per second)."""

_SCHEMA = 1


def beta_from_bytes_per_s(bytes_per_s: float) -> float:
    """Return beta (us/MB) of a link that moves `bytes_per_s` payload bytes a second."""
    return 1e6 * BYTES_PER_MB / bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A directed link between two ranks: b bytes take ``alpha_us + beta_us_per_mb * b/10^6``."""

    src: int
    dst: int
    alpha_us: float
    beta_us_per_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCapacity:
    """A NIC, uplink or switch port: all of `links` (indices) together get one over beta."""

    name: str
    links: tuple[int, ...]
    beta_us_per_mb: float


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Who can talk to whom, and at what cost.

    Attributes
    ----------
    hosts : host names, distinct.
    rank_host : for every rank, the index of its host.
    links : directed links between ranks.
    shared : capacities that several links use together.
    addresses : where a job's ranks listen on each host, if names do not say; else empty.

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

    def __post_init__(self) -> None:
        if len(self.addresses) not in (0, len(self.hosts)):
            raise TopologyError(
                f"addresses has {len(self.addresses)} entries, needs none or one for each of the "
                f"{len(self.hosts)} hosts"
            )
        if not self.rank_host:
            raise TopologyError("rank_host is empty, needs at least one rank")
        if len(set(self.hosts)) != len(self.hosts):
            raise TopologyError(f"hosts has duplicates: {list(self.hosts)}")
        for rank, host in enumerate(self.rank_host):
            if not 0 <= host < len(self.hosts):
                raise TopologyError(
                    f"rank_host[{rank}] is {host}, needs 0 to {len(self.hosts) - 1}"
                )
        seen: set[tuple[int, int]] = set()
        for index, link in enumerate(self.links):
            for end in ("src", "dst"):
                if not 0 <= getattr(link, end) < self.ranks:
                    raise TopologyError(
                        f"links[{index}].{end} is {getattr(link, end)}, needs 0 to {self.ranks - 1}"
                    )
            if link.src == link.dst:
                raise TopologyError(f"links[{index}] joins rank {link.src} to itself")
            if (link.src, link.dst) in seen:
                raise TopologyError(f"links[{index}] repeats {link.src} -> {link.dst}")
            seen.add((link.src, link.dst))
            _check_cost(f"links[{index}].alpha_us", link.alpha_us, may_be_zero=True)
            _check_cost(f"links[{index}].beta_us_per_mb", link.beta_us_per_mb, may_be_zero=False)
        for index, shared in enumerate(self.shared):
            if len(set(shared.links)) != len(shared.links):
                raise TopologyError(
                    f"shared[{index}] ({shared.name}): links {list(shared.links)} repeats a link, "
                    "needs each at most once"
                )
            for link in shared.links:
                if not 0 <= link < len(self.links):
                    raise TopologyError(
                        f"shared[{index}] ({shared.name}): link {link}, needs 0 to "
                        f"{len(self.links) - 1}"
                    )
            _check_cost(f"shared[{index}].beta_us_per_mb", shared.beta_us_per_mb, may_be_zero=False)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_host)

    @cached_property
    def link_index(self) -> Mapping[tuple[int, int], int]:
        """(src, dst) -> index into `links`."""
        return {(link.src, link.dst): index for index, link in enumerate(self.links)}

    @property
    def digest(self) -> str:
        """SHA-256 of the content; plans and bounds name the graph they hold for by it."""
        return self.to_artifact().digest

    def to_artifact(self, provenance: Mapping[str, Any] | None = None) -> Artifact:
        """Return the topology as an artifact of kind "topology"."""
        return Artifact(
            kind="topology", schema=_SCHEMA, head=self.to_head(), provenance=provenance or {}
        )

    def to_head(self) -> dict[str, Any]:
        """Return the JSON form: what `from_head` reads."""
        addresses = {"addresses": list(self.addresses)} if self.addresses else {}
        return {
            "name": self.name,
            "hosts": list(self.hosts),
            **addresses,
            "rank_host": list(self.rank_host),
            "links": [[k.src, k.dst, k.alpha_us, k.beta_us_per_mb] for k in self.links],
            "shared": [
                {"name": s.name, "links": list(s.links), "beta_us_per_mb": s.beta_us_per_mb}
                for s in self.shared
            ],
        }

    @classmethod
    def from_head(cls, head: Mapping[str, Any], source: str = "topology") -> "Topology":
        """Parse the JSON form.

        Raises
        ------
        TopologyError : naming the field, what was found and what is allowed.
        """
        if not isinstance(head, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TopologyError(f"{source}: is {head!r}, needs an object")
        for field in ("name", "hosts", "rank_host", "links"):
            if field not in head:
                raise TopologyError(f"{source}: field '{field}' is missing")
        try:
            links = tuple(
                Link(
                    src=fields.integer(src),
                    dst=fields.integer(dst),
                    alpha_us=fields.number(alpha),
                    beta_us_per_mb=fields.number(beta),
                )
                for src, dst, alpha, beta in map(fields.items, fields.items(head["links"]))
            )
        except (TypeError, ValueError) as error:
            raise TopologyError(
                f"{source}: field 'links' needs rows [src, dst, alpha_us, beta_us_per_mb]: {error}"
            ) from error
        try:
            shared = tuple(
                SharedCapacity(
                    name=fields.text(row["name"]),
                    links=tuple(map(fields.integer, fields.items(row["links"]))),
                    beta_us_per_mb=fields.number(row["beta_us_per_mb"]),
                )
                for row in map(fields.table, fields.items(head.get("shared", ())))
            )
        except (TypeError, ValueError, KeyError) as error:
            raise TopologyError(
                f"{source}: field 'shared' needs objects with name, links, beta_us_per_mb: "
                f"{error!r}"
            ) from error
        try:
            name = fields.text(head["name"])
            hosts = tuple(map(fields.text, fields.items(head["hosts"])))
            rank_host = tuple(map(fields.integer, fields.items(head["rank_host"])))
            addresses = tuple(map(fields.text, fields.items(head.get("addresses", ()))))
        except TypeError as error:
            raise TopologyError(
                f"{source}: fields 'name', 'hosts', 'rank_host' and 'addresses' need a text, a "
                f"list of names, a list of host indices and a list of addresses: {error}"
            ) from error
        try:
            return cls(
                name=name,
                hosts=hosts,
                rank_host=rank_host,
                links=links,
                shared=shared,
                addresses=addresses,
            )
        except TopologyError as error:
            raise TopologyError(f"{source}: {error}") from error

    def save(self, path: str | Path, provenance: Mapping[str, Any] | None = None) -> None:
        """Write the topology to `path`."""
        self.to_artifact(provenance).save(path)

    @classmethod
    def load(cls, path: str | Path) -> "Topology":
        """Read a topology from `path`; raises ArtifactError or TopologyError."""
        return cls.from_head(artifact_io.load(path, "topology", _SCHEMA).head, str(path))


def _check_cost(name: str, value: float, *, may_be_zero: bool) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        allowed = "a finite number of at least 0" if may_be_zero else "a finite number above 0"
        raise TopologyError(f"{name} is {value!r}, needs {allowed}")
