"""What was probed where: the sites of ranks, and the table of every timed run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from headrace.collectives.measure.conduct import Prober
from headrace.collectives.measure.probe import Flow, Manner, Probe
from headrace.errors import InputError

BULK_CHUNKS = 8
"""Chunks of a bulk transfer that is sent at once."""


class Stage(IntEnum):
    """Why a probe was made."""

    TOURNAMENT = 0
    QUIET = 1
    SHARING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Which rank is on which host.

    Attributes
    ----------
    hosts : distinct host names, in the order of their first ranks.
    members : for every host its ranks.
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

    @property
    def rank_host(self) -> tuple[int, ...]:
        """For every rank, the index of its host."""
        host_of = {rank: host for host, ranks in enumerate(self.members) for rank in ranks}
        return tuple(host_of[rank] for rank in range(len(host_of)))

    def rank(self, host: int, turn: int = 0) -> int:
        """A rank on `host`: another one each turn, while there are others."""
        return self.members[host][turn % len(self.members[host])]


@dataclass(slots=True)
class Recorder:
    """Carries out probes and keeps every time in a table."""

    prober: Prober
    _rows: list[tuple[float, ...]] = field(default_factory=list)
    _probes: int = 0

    def probe(
        self,
        stage: Stage,
        manner: Manner,
        chunks: int,
        flows: Sequence[Flow],
        repeats: int,
    ) -> np.ndarray:
        """Run a probe; returns (flows, repeats) microseconds, as seen by each flow's sender."""
        probe = Probe(
            ranks=self.prober.ranks,
            manner=manner,
            chunks=chunks,
            flows=tuple(flows),
            repeats=repeats,
        )
        times = self.prober.measure(probe)[[flow.src for flow in flows]]
        for flow, row in zip(flows, times.tolist(), strict=True):
            for repeat, time_us in enumerate(row):
                self._rows.append((self._probes, stage, manner, chunks, *flow, repeat, time_us))
        self._probes += 1
        return times

    def bulk(
        self, stage: Stage, pairs: Sequence[tuple[int, int]], sizes: Sequence[float], repeats: int
    ) -> np.ndarray:
        """Send about `sizes` bytes between `pairs`, all at once; see `probe`."""
        flows = [
            Flow(src, dst, bulk_chunk_bytes(size))
            for (src, dst), size in zip(pairs, sizes, strict=True)
        ]
        return self.probe(stage, Manner.AT_ONCE, BULK_CHUNKS, flows, repeats)

    def table(self) -> dict[str, np.ndarray]:
        """Every timed run: columns probe, stage, manner, chunks, src, dst, chunk_bytes, repeat, us.

        Rows with the same `probe` ran at the same time (once per `repeat`); `src` and `dst` are
        ranks.
        """
        names = ("probe", "stage", "manner", "chunks", "src", "dst", "chunk_bytes", "repeat", "us")
        types = (np.int32, np.uint8, np.uint8, np.int32, np.int32, np.int32, np.int64, np.int32)
        columns = list(zip(*self._rows, strict=True)) or [()] * len(names)
        return {
            name: np.array(column, dtype=dtype)
            for name, column, dtype in zip(names, columns, (*types, np.float64), strict=True)
        }


def bulk_chunk_bytes(total_bytes: float) -> int:
    """Size of one chunk of a bulk transfer of about `total_bytes`."""
    return max(1, round(total_bytes / BULK_CHUNKS))
