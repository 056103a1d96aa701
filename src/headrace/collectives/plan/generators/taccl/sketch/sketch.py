"""Content of a communication sketch (TACCL 5.4.1, B.1), independent of a topology."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Policy(StrEnum):
    """Number of connections through a switch to use: most, fewest or free (5.4.1, 5.9 to 5.11)."""

    MAX = "uc-max"
    MIN = "uc-min"
    FREE = "free"
    AUTO = "auto"


AUTO_BYTES = 1_000_000
"""Chunks above this get `uc-min`, others `uc-max`, where the policy is `auto` (5.4.2)."""


class Strategy(StrEnum):
    """Treatment of the links within a node.

    ``switch``: they are hyperedges. ``minmax``, ``maxmin``: minimize the largest load of a link,
    maximize the smallest, at equal time.
    """

    NONE = "none"
    SWITCH = "switch"
    MINMAX = "minmax"
    MAXMIN = "maxmin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intranode:
    """The sketch within every node.

    Attributes
    ----------
    switches : for every switch its GPUs, numbered within a node.
    policies : one for every switch.
    """

    strategy: Strategy = Strategy.NONE
    switches: tuple[tuple[int, ...], ...] = ()
    policies: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMap:
    """`chunk_to_relay_map`: GPU g's chunks leave its node from ``g // group * group + place``."""

    group: int
    place: int

    def sender(self, gpu: int) -> int:
        """Return the sender for chunks of `gpu`, both numbered within the node."""
        return gpu // self.group * self.group + self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Internode:
    """The sketch between any two nodes; GPUs are numbered within their nodes.

    Attributes
    ----------
    connections : sender -> receivers, or "fully-connected", or "direct-map" (i to i).
    beta_split : sender -> n: it gets one n-th of the bandwidth between nodes.
    relay : the sender of a chunk out of its node, as a formula.
    senders : the same as a table: sender -> GPUs whose chunks it sends out.
    enforce_ordering : a sender's own chunks leave before those that it relays.
    """

    connections: Mapping[int, tuple[int, ...]] | str = "fully-connected"
    beta_split: Mapping[int, float] = field(default_factory=dict)
    relay: RelayMap | None = None
    senders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    enforce_ordering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """An automorphism, and the parts within which sends must follow it (5.4.1).

    Either `offset` and `group` (B.1: rank x goes to ``floor(x/g)*g + ((x mod g) + o) mod g``,
    parts are the groups), or `automorphism` and `partition`.

    Attributes
    ----------
    automorphism : image of every rank.
    partition : parts that the automorphism maps to parts; empty: one part, all ranks.
    """

    offset: int = 0
    group: int = 0
    automorphism: tuple[int, ...] = ()
    partition: tuple[tuple[int, ...], ...] = ()

    def permutation(self, ranks: int) -> tuple[int, ...]:
        """Return the image of every rank."""
        if self.automorphism:
            return self.automorphism
        o, g = self.offset, self.group
        return tuple(x // g * g + (x % g + o) % g for x in range(ranks))

    def part_of(self, ranks: int) -> tuple[int, ...]:
        """Return the number of every rank's part."""
        if not self.automorphism:
            return tuple(x // self.group for x in range(ranks))
        parts = {rank: index for index, part in enumerate(self.partition) for rank in part}
        return tuple(parts.get(rank, 0) for rank in range(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A communication sketch.

    Attributes
    ----------
    name : of the file, or as the dissertation calls it.
    nodes : number of nodes.
    internode : None only for a single node.
    chunkup : chunks of a rank's block.
    input_bytes : a rank's input; None if not given.
    """

    name: str
    nodes: int
    intranode: Intranode
    internode: Internode | None = None
    symmetries: tuple[Symmetry, ...] = ()
    chunkup: int = 1
    input_bytes: int | None = None
