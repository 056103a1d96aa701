"""A network made of formulas, to measure in tests: fair sharing of capacities, with noise."""

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.collectives.measure.probes.probe import Manner, Probe
from headrace.errors import CommunicationError
from headrace.topology import BYTES_PER_MB, Topology
from headrace.topology.presets import racks

MBIT = 1e6 / 8


class Network:
    """Answers probes for a topology: flows share its capacities max-min fairly.

    Parameters
    ----------
    noise : relative standard deviation of every time.
    burst_bytes : how much every link lets through at once before its rate holds.
    slow_us : what a probe takes beyond the time of its flows.
    deaths : probe number -> rank that dies then.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        noise: float = 0.0,
        burst_bytes: float = 0.0,
        call_us: float = 30.0,
        seed: int = 0,
        half_duplex: bool = False,
        slow_us: float = 0.0,
        deaths: Mapping[int, int] | None = None,
    ) -> None:
        self.topology = topology
        self.noise = noise
        self.burst_bytes = burst_bytes
        self.call_us = call_us
        self.half_duplex = half_duplex
        self.random = np.random.default_rng(seed)
        self.total_us = 0.0
        self.probes: list[Probe] = []
        self.slow_us = slow_us
        self.deaths = dict(deaths or {})
        self.lost: dict[int, str] = {}
        self.newly_dead: set[int] = set()

    def clock(self) -> float:
        """Seconds of network time."""
        return self.total_us / 1e6

    @property
    def ranks(self) -> int:
        return self.topology.ranks

    def measure(self, probe: Probe) -> np.ndarray:
        self.total_us += self.slow_us
        assert not self.newly_dead, "the loss was not reported"
        if (rank := self.deaths.pop(len(self.probes), None)) is not None:
            self.newly_dead.add(rank)
            self.total_us += 1e6
            raise CommunicationError(f"rank {rank} hung up")
        assert not self.lost.keys() & {rank for flow in probe.flows for rank in flow[:2]}
        self.probes.append(probe)
        times = np.full((self.ranks, probe.repeats), self.call_us)
        ends = self._ends([(f.src, f.dst) for f in probe.flows], self._sizes(probe))
        for flow, end in zip(probe.flows, ends, strict=True):
            alpha = self._link(flow.src, flow.dst).alpha_us
            hops = 2 * (probe.chunks if probe.manner is Manner.ONE_AFTER_ANOTHER else 1)
            # a rank is done when what it sends and what it receives is
            for rank in (flow.src, flow.dst):
                times[rank] = np.maximum(times[rank], self.call_us + hops * alpha + end)
        times = times * np.exp(self.noise * self.random.standard_normal(times.shape))
        self.total_us += float(times.max(axis=0).sum())
        return times

    def round_trips(self) -> np.ndarray:
        times = np.full((self.ranks, self.ranks), np.nan)
        for link in self.topology.links:
            times[link.src, link.dst] = 2 * link.alpha_us
        return times

    def survive(self, error: CommunicationError) -> None:
        if not self.newly_dead:
            raise error
        self.lost.update(dict.fromkeys(self.newly_dead, str(error)))
        self.newly_dead.clear()

    def _sizes(self, probe: Probe) -> np.ndarray:
        sizes = np.array([probe.chunks * flow.chunk_bytes for flow in probe.flows])
        return np.maximum(sizes - self.burst_bytes, 0.0) / BYTES_PER_MB

    def _link(self, src: int, dst: int):
        return self.topology.links[self.topology.link_index[src, dst]]

    def _ends(self, flows: Sequence[tuple[int, int]], sizes: np.ndarray) -> np.ndarray:
        """When each flow (MB) ends, in us."""
        left, ends, now = sizes.astype(float).copy(), np.zeros(len(flows)), 0.0
        while (left > 1e-12).any():
            active = np.flatnonzero(left > 1e-12)
            rates = self._fair([flows[i] for i in active])
            step = float((left[active] / rates).min())
            left[active] -= rates * step
            now += step
            ends[active] = now
        return ends

    def _fair(self, flows: Sequence[tuple[int, int]]) -> np.ndarray:
        """Max-min fair rates in MB/us."""
        links = [self.topology.link_index[flow] for flow in flows]
        ports = [({i}, 1 / self._link(*flow).beta_us_per_mb) for i, flow in enumerate(flows)]
        for shared in self._ports():
            mine = {i for i, link in enumerate(links) if link in shared[0]}
            if mine:
                ports.append((mine, shared[1]))
        rates = np.zeros(len(flows))
        fixed: set[int] = set()
        while len(fixed) < len(flows):
            share, tight = min(
                ((room - sum(rates[i] for i in mine & fixed)) / len(mine - fixed), index)
                for index, (mine, room) in enumerate(ports)
                if mine - fixed
            )
            for i in ports[tight][0] - fixed:
                rates[i] = max(share, 1e-12)
                fixed.add(i)
        return rates

    def _ports(self) -> list[tuple[set[int], float]]:
        ports = [(set(s.links), 1 / s.beta_us_per_mb) for s in self.topology.shared]
        if not self.half_duplex:
            return ports
        named = {s.name: s for s in self.topology.shared}
        both = []
        for name, s in named.items():
            if name.startswith("uplink-out"):
                back = named[name.replace("out", "in")]
                both.append((set(s.links) | set(back.links), 1 / s.beta_us_per_mb))
        return ports + both


def shuffled_racks(
    sizes: tuple[int, ...], seed: int, *, host: float = 400, uplink: float = 100
) -> tuple[Topology, set[frozenset[int]]]:
    """Racks (rates in Mbit/s) with ranks in random order, and which ranks are in one rack."""
    order = tuple(int(i) for i in np.random.default_rng(seed).permutation(sum(sizes)))
    rack_of = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    truth = {
        frozenset(rank for rank, place in enumerate(order) if rack_of[place] == rack)
        for rack in range(len(sizes))
    }
    topology = racks(
        sizes,
        host_bytes_per_s=host * MBIT,
        uplink_bytes_per_s=uplink * MBIT,
        alpha_us=40.0,
        rank_order=order,
    )
    return topology, truth
