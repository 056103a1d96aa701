"""The Profile artifact: a measured network, with the variances of its costs."""

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.topology import Topology
from headrace.topology.topology import ALPHA_US, BETA_US_PER_MB
from headrace.units import mbit

_COLUMNS = {
    "samples": ("src", "dst", "chunks", "chunk_bytes", "us"),
    "fits": ("src", "dst", "alpha_us", "beta_us_per_mb", "alpha_variance", "beta_variance"),
    "pairs": ("src", "dst", "bytes_per_s", "median_rtt_us", "min_rtt_us", "kernel_rtt_us"),
}
"""Columns that every table has at least."""

_LEAST_US, _MOST_US = ALPHA_US
_RANGES = {
    "us": (_LEAST_US, _MOST_US),
    "alpha_us": ALPHA_US,
    "beta_us_per_mb": BETA_US_PER_MB,
    "alpha_variance": (0.0, _MOST_US**2),
    "beta_variance": (0.0, BETA_US_PER_MB[1] ** 2),
    "bytes_per_s": (1e12 / BETA_US_PER_MB[1], 1e12 / BETA_US_PER_MB[0]),
    "median_rtt_us": (_LEAST_US, _MOST_US),
    "min_rtt_us": (_LEAST_US, _MOST_US),
    "kernel_rtt_us": (_LEAST_US, _MOST_US),
}
"""Least and largest value of a column, by the range of link costs; also 0 and nan (unknown)."""

_TIMES = ("measured_at", "took_s", "valid_for_s")
_YEAR_3000 = 32_503_680_000.0


@stored_value("headrace.topology", ArtifactError, eq=False, repr=False)
class Profile(ArtifactValue, kind="profile", schema=2, command="headrace collectives measure"):
    """A measured network.

    Attributes
    ----------
    topology : ranks, hosts, links with alpha (us) and beta (us/MB), and what they share.
    groups : ranks by rack; every rank is in one group.
    samples : every timed run, see `recorder.Recorder.table`.
    fits : one row per pair of ranks with unloaded probes: `src`, `dst` and the fields of
        `fit.LinkFit`, among them the variances of alpha and beta.
    pairs : one row per ordered pair of ranks (one of each host) in the round-robin: `src`, `dst`,
        `bytes_per_s` (with other pairs active), and round trips as timed by the sender
        (`median_rtt_us`, `min_rtt_us`) and by its kernel (`kernel_rtt_us`, nan if unknown).
    measured_at : seconds since 1970, UTC, when measuring began.
    took_s : seconds that measuring took.
    valid_for_s : validity, in seconds after `measured_at`.
    provenance : settings and versions that it was made with; not part of the digest.

    Raises
    ------
    ArtifactError : if the groups are not a partition of the ranks, a column of ranks is of another
        type or range, or a cost or time is impossible.
    """

    topology: Topology
    groups: tuple[tuple[int, ...], ...]
    samples: Mapping[str, np.ndarray]
    fits: Mapping[str, np.ndarray]
    measured_at: float
    took_s: float
    valid_for_s: float
    pairs: Mapping[str, np.ndarray]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        members = sorted(rank for group in self.groups for rank in group)
        if members != list(range(self.topology.ranks)):
            raise ArtifactError(
                f"profile: field 'groups' holds ranks {fields.shown(members)}, needs each of 0 to "
                f"{self.topology.ranks - 1} once"
            )
        for table in (self.samples, self.fits, self.pairs):
            for end in ("src", "dst"):
                ranks = table[end]
                if ranks.dtype.kind not in "iu":
                    raise ArtifactError(
                        f"profile: column '{end}' has type {ranks.dtype}, needs integers"
                    )
                if len(ranks) and not 0 <= ranks.min() <= ranks.max() < self.topology.ranks:
                    raise ArtifactError(
                        f"profile: column '{end}' holds ranks from {ranks.min()} to "
                        f"{ranks.max()}, needs 0 to {self.topology.ranks - 1}"
                    )
            _check_ranges(table)
        for name in _TIMES:
            if not 0 <= getattr(self, name) < _YEAR_3000:
                raise ArtifactError(
                    f"profile: field '{name}' is {getattr(self, name)!r}, needs seconds from 0 "
                    f"to {_YEAR_3000:.0f}"
                )

    @property
    def description(self) -> str:
        """The network, its groups of hosts, and when it was measured."""
        measured_at = datetime.fromtimestamp(self.measured_at, UTC)
        return (
            f"{self.topology.description}, {len(self.groups)} groups, measured "
            f"{measured_at:%Y-%m-%d %H:%M} UTC"
        )

    @property
    def host_groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups as host names."""
        home, hosts = self.topology.rank_host, self.topology.hosts
        return tuple(
            tuple(dict.fromkeys(hosts[home[rank]] for rank in group)) for group in self.groups
        )

    def matrix(self, column: str) -> np.ndarray:
        """Return a column of `pairs` as (hosts, hosts) from row to column; nan where not known."""
        hosts, home = len(self.topology.hosts), np.array(self.topology.rank_host)
        matrix = np.full((hosts, hosts), np.nan)
        matrix[home[self.pairs["src"]], home[self.pairs["dst"]]] = self.pairs[column]
        return matrix

    def expired(self, now: float) -> bool:
        """Return whether `now` (seconds since 1970) is past the profile's validity."""
        return now > self.measured_at + self.valid_for_s

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        head = {
            "topology": self.topology.to_head(),
            "groups": [list(group) for group in self.groups],
            **{name: getattr(self, name) for name in _TIMES},
        }
        return head, {name: dict(getattr(self, name)) for name in _COLUMNS}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "profile") -> "Profile":
        """Rebuild a profile.

        Raises
        ------
        ArtifactError, TopologyError : naming the field, what was found and what is needed.
        """
        head = Field(artifact.head, source, ArtifactError)
        columns: dict[str, Any] = {
            name: artifact.numbers(name, needed, source) for name, needed in _COLUMNS.items()
        }
        topology = Topology.from_head(head.at("topology").found, f"{source}: field 'topology'")
        groups = head.at("groups").read(_groups, "lists of ranks")
        columns |= {name: head.at(name).read(fields.number, "seconds") for name in _TIMES}
        try:
            return cls(topology=topology, groups=groups, provenance=artifact.provenance, **columns)
        except ArtifactError as error:
            raise ArtifactError(f"{source}: {error}") from error

    def summary(self) -> list[tuple[str, str]]:
        """Return (label, value) rows for display."""
        topology = self.topology
        when = datetime.fromtimestamp(self.measured_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        rows = [
            ("measured", f"{when}, in {self.took_s:.1f} s, {len(self.samples['us'])} timed runs"),
            ("ranks", f"{topology.ranks} on {len(topology.hosts)} hosts"),
        ]
        rows += [
            (f"group {index}", ", ".join(hosts)) for index, hosts in enumerate(self.host_groups)
        ]
        if topology.links:
            rows.append(("alpha", _spread([link.alpha_us for link in topology.links], "us")))
            rows.append(
                ("bandwidth", _spread([mbit(k.beta_us_per_mb) for k in topology.links], "Mbit/s"))
            )
        rows += [
            (s.name, f"{'at least ' * s.at_least}{mbit(s.beta_us_per_mb):.4g} Mbit/s")
            for s in topology.shared
        ]
        rows += [(name, str(note)) for name in ("lost", "cut") for note in self._notes(name)]
        return rows

    def _notes(self, name: str) -> list[Any]:
        notes = self.provenance.get(name)
        return notes if isinstance(notes, list) else []  # pyright: ignore[reportUnknownVariableType]


def _check_ranges(table: Mapping[str, np.ndarray]) -> None:
    for name, (low, high) in _RANGES.items():
        column = table.get(name, np.zeros(0))
        with np.errstate(invalid="ignore"):
            wrong = ~((column == 0) | np.isnan(column) | ((column >= low) & (column <= high)))
        if wrong.any():
            row = int(wrong.argmax())
            raise ArtifactError(
                f"profile: {name}[{row}] is {column[row]}, needs 0, nan or {low:g} to {high:g}: no "
                "network's cost is beyond; measure again"
            )


def _groups(node: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(fields.integer, fields.items(group))) for group in fields.items(node))


def _spread(values: list[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g} to {high:.4g} {unit}" if low < high else f"{low:.4g} {unit}"
