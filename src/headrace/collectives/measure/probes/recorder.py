"""Recording of probes: the hosts of ranks, and the table of every timed run."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from headrace.artifact import columns_of
from headrace.collectives.measure.probes.group_prober import MAX_REPEATS, Prober
from headrace.collectives.measure.probes.probe import ACK_BYTES, Flow, Manner, Probe
from headrace.errors import InputError
from headrace.topology.arrange import between

BULK_CHUNKS = 8
"""Chunks of a bulk transfer that is sent at once."""

_WARM_UP = 2  # echoes
_COLUMNS: Mapping[str, type] = {
    "probe": np.int32,
    "stage": np.uint8,
    "manner": np.uint8,
    "chunks": np.int32,
    "src": np.int32,
    "dst": np.int32,
    "chunk_bytes": np.int64,
    "repeat": np.int32,
    "us": np.float64,
}


class Series(IntEnum):
    """Stage of the survey that a probe belongs to: column `stage`."""

    ROUND_ROBIN = 0
    UNLOADED = 1
    SHARING = 2
    PERMUTATION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Ranks by host.

    Attributes
    ----------
    hosts : distinct host names, in the order of their first ranks.
    members : the ranks of every host.
    """

    hosts: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rank_hosts: Sequence[str]) -> "Site":
        """Make a site from every rank's host.

        Raises
        ------
        InputError : if there are no ranks.
        """
        if not rank_hosts:
            raise InputError("hosts is empty, needs the host of every rank")
        members: dict[str, list[int]] = {}
        for rank, host in enumerate(rank_hosts):
            members.setdefault(host, []).append(rank)
        return cls(hosts=tuple(members), members=tuple(tuple(ranks) for ranks in members.values()))

    def without(self, lost: Collection[int]) -> "Site":
        """Return the site without `lost` ranks and the hosts that only had such.

        Ranks keep their numbers.
        """
        left = [tuple(rank for rank in ranks if rank not in lost) for ranks in self.members]
        remaining = [index for index, ranks in enumerate(left) if ranks]
        return Site(
            hosts=tuple(self.hosts[index] for index in remaining),
            members=tuple(left[index] for index in remaining),
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, ascending."""
        return tuple(sorted(rank for ranks in self.members for rank in ranks))

    @property
    def rank_host(self) -> tuple[int, ...]:
        """The host index of every rank."""
        host_of = {rank: host for host, ranks in enumerate(self.members) for rank in ranks}
        return tuple(host_of[rank] for rank in self.ranks)

    def rank(self, host: int, turn: int = 0) -> int:
        """Return a rank on `host`, in rotation by `turn`."""
        return self.members[host][turn % len(self.members[host])]


@dataclass(slots=True)
class Recorder:
    """Runner of probes that keeps every time in a table.

    Attributes
    ----------
    clock : in seconds.
    finished_s : end of the last successful probe, on that clock, or of the wait after a loss.
    """

    prober: Prober
    clock: Callable[[], float] = time.monotonic
    finished_s: float = field(init=False)
    _rows: list[tuple[float, ...]] = field(default_factory=list)
    _probes: int = 0

    def __post_init__(self) -> None:
        self.finished_s = self.clock()

    def probe(
        self,
        stage: Series,
        manner: Manner,
        chunks: int,
        flows: Sequence[Flow],
        repeats: int,
        *,
        warm_up: int = 0,
    ) -> np.ndarray:
        """Run a probe; returns (flows, repeats) microseconds, as seen by each flow's sender.

        `warm_up` more runs come first and are not kept.
        """
        probe = Probe(
            ranks=self.prober.ranks,
            manner=manner,
            chunks=chunks,
            flows=tuple(flows),
            repeats=warm_up + repeats,
        )
        times = self.prober.measure(probe)[[flow.src for flow in flows], warm_up:]
        for flow, row in zip(flows, times.tolist(), strict=True):
            for repeat, time_us in enumerate(row):
                self._rows.append((self._probes, stage, manner, chunks, *flow, repeat, time_us))
        self._probes += 1
        self.finished_s = self.clock()
        return times

    def bulk(
        self, stage: Series, pairs: Sequence[tuple[int, int]], sizes: Sequence[float], repeats: int
    ) -> np.ndarray:
        """Send about `sizes` bytes between `pairs`, all at once; see `probe`."""
        flows = [
            Flow(src, dst, bulk_chunk_bytes(size))
            for (src, dst), size in zip(pairs, sizes, strict=True)
        ]
        return self.probe(stage, Manner.AT_ONCE, BULK_CHUNKS, flows, repeats)

    def echo(self, pairs: Sequence[tuple[int, int]], echoes: int) -> np.ndarray:
        """Time single round trips between disjoint `pairs`; returns (pairs, echoes) us."""
        flows = [Flow(src, dst, ACK_BYTES) for src, dst in pairs]
        echoes = min(echoes, MAX_REPEATS - _WARM_UP)
        manner = Manner.ONE_AFTER_ANOTHER
        return self.probe(Series.ROUND_ROBIN, manner, 1, flows, echoes, warm_up=_WARM_UP)

    def table(self, ranks: Sequence[int]) -> dict[str, np.ndarray]:
        """Return all timed runs: probe, stage, manner, chunks, src, dst, chunk_bytes, repeat, us.

        Rows with the same `probe` ran at the same time (once per `repeat`). `src` and `dst` are
        indices into `ranks`; runs with other ranks are left out.
        """
        place = {rank: index for index, rank in enumerate(ranks)}
        return between(columns_of(self._rows, _COLUMNS), place)


def no_samples() -> dict[str, np.ndarray]:
    """Return the empty table, for a network that was not measured here."""
    return columns_of((), _COLUMNS)


def bulk_chunk_bytes(total_bytes: float) -> int:
    """Return the size of one chunk of a bulk transfer of about `total_bytes`."""
    return max(1, round(total_bytes / BULK_CHUNKS))
