"""Simulated measurements of known networks, to test inference.

Hosts are leaves of a tree of up to six levels. A pair's latency is that of its lowest common
switch, its bandwidth is limited by the uplinks on its path; then come errors of measurement: noise,
competing traffic, and directions that differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.instruments.affinity import LEVELS, Position, shared_levels
from benchmarks.instruments.network_table import NetworkTable
from headrace.errors import InputError

TURN_US = ((52.0, 56.0), (39.0, 42.0), (29.0, 32.0), (22.0, 24.0), (16.0, 18.0), (12.0, 13.0))
"""Latency (us, least and most) of a path that turns above a region, in a region, a datacenter, a
cluster, a row, a rack. Levels are about a third apart, so close that single probes of neighbouring
levels overlap under the default noise."""

OVERSUBSCRIPTION = (1.5, 1.5, 2.0, 2.0, 4.0)
"""Ratio of the rates below a region, datacenter, cluster, row and rack to that of its uplink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Errors that measuring adds to the true values.

    Attributes
    ----------
    noise : standard deviation of the logarithm of every single measurement.
    competing : share of measurements under competing traffic, 1.5 to 5 times worse.
    asymmetry : standard deviation of the logarithm of the ratio of a host's two directions.
    stack_us : most latency of a host's own stack, uniform from 0.
    """

    noise: float = 0.3
    competing: float = 0.02
    asymmetry: float = 0.05
    stack_us: float = 1.0

    def __post_init__(self) -> None:
        for name in ("noise", "competing", "asymmetry", "stack_us"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0) or (name == "competing" and value > 1):
                raise InputError(f"{name} is {value}, needs a finite number of at least 0")


NOISELESS = Disturbance(noise=0.0, competing=0.0, asymmetry=0.0, stack_us=0.0)
"""No errors: true values."""


def nested_positions(
    hosts: int, units: Sequence[int], *, seed: int = 0, even: bool = False
) -> tuple[Position, ...]:
    """Return positions of hosts in random order in a random tree of six levels.

    Parameters
    ----------
    units : numbers of regions, datacenters, clusters, rows and racks in all, no fewer on any
        level than on the one above it. With equal numbers a level has no part. The 64 machines
        of PLink 5.5 are in (1, 2, 7, 15, 61).
    seed : of the tree, and the order of hosts.
    even : units of equal sizes (as far as numbers allow) rather than random ones.

    Raises
    ------
    InputError : if the numbers fall from one level to the next.
    """
    levels = (*units, hosts)
    if len(levels) != len(LEVELS) or list(levels) != sorted(levels) or levels[0] < 1:
        raise InputError(
            f"units is {tuple(units)} for {hosts} hosts, needs {len(LEVELS) - 1} numbers that do "
            f"not fall, from at least 1 to at most {hosts}"
        )
    random = np.random.default_rng(seed)
    path = np.arange(units[0])[:, None]
    for above, here in pairwise(levels):
        more = here - above  # besides one in every unit of the level above
        extra = np.arange(more) % above if even else random.integers(above, size=more)
        parent = np.concatenate([np.arange(above), extra])
        path = np.concatenate([path[parent], np.arange(here)[:, None]], axis=1)
    return tuple(tuple(row) for row in path[random.permutation(hosts)].tolist())


def rack_positions(sizes: Sequence[int], *, seed: int = 0) -> tuple[Position, ...]:
    """Return positions of hosts in random order in racks of these sizes, all in one row.

    Raises
    ------
    InputError : for a rack without hosts.
    """
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes is {tuple(sizes)}, needs at least one rack of at least one host")
    rack = np.repeat(np.arange(len(sizes)), sizes)
    order = np.random.default_rng(seed).permutation(len(rack))
    return tuple((0, 0, 0, 0, int(rack[host]), int(host)) for host in order)


def simulate_network(
    positions: Sequence[Position],
    *,
    seed: int = 0,
    disturbance: Disturbance | None = None,
    turn_us: Sequence[tuple[float, float]] = TURN_US,
    oversubscription: Sequence[float] = OVERSUBSCRIPTION,
    host_bytes_per_s: float = 1.25e9,
) -> NetworkTable:
    """Return measurements between hosts at these positions (of `LEVELS`).

    Parameters
    ----------
    seed : of the network and the disturbance. Two that differ only in their disturbance are the
        same network.
    disturbance : errors of measurement (default: all, noise of 0.3; see also `NOISELESS`).
    turn_us : for each of `LEVELS`, the range of latency of a path that turns above it.
    oversubscription : of all of `LEVELS` but the host. A flow's bandwidth is that of its hosts over
        the oversubscription of the units that it leaves: its share while all hosts send.

    Raises
    ------
    InputError : if numbers do not fit each other.
    """
    disturbance = disturbance or Disturbance()
    levels = len(LEVELS)
    if any(len(position) != levels for position in positions):
        raise InputError(f"positions need {levels} entries each: {', '.join(LEVELS)}")
    if len(turn_us) != levels or not all(0 < least <= most for least, most in turn_us):
        raise InputError(f"turn_us is {turn_us}, needs {levels} pairs 0 < least <= most")
    if len(oversubscription) != levels - 1 or not all(x >= 1 for x in oversubscription):
        raise InputError(
            f"oversubscription is {tuple(oversubscription)}, needs {levels - 1} numbers from 1"
        )
    random = np.random.default_rng(seed)
    common = shared_levels(positions)
    left = np.cumprod([1.0, *reversed(oversubscription)])
    bandwidth = host_bytes_per_s / left[np.maximum(levels - 1 - common, 0)]
    latency = _latency(positions, common, turn_us, random)
    latency, bandwidth = _disturbed(latency, bandwidth, disturbance, random)
    np.fill_diagonal(latency, np.nan)
    np.fill_diagonal(bandwidth, np.nan)
    return NetworkTable(
        name=f"{len(positions)} hosts, generated",
        positions=tuple(positions),
        latency_us=latency,
        bandwidth=bandwidth,
    )


def _latency(
    positions: Sequence[Position],
    common: np.ndarray,
    turn_us: Sequence[tuple[float, float]],
    random: np.random.Generator,
) -> np.ndarray:
    """Return latencies: every unit has one of its own for the paths that turn in it."""
    latency = np.zeros(common.shape)
    for level, (least, most) in enumerate(turn_us):
        units = {position[:level]: 0.0 for position in positions}
        units = dict(zip(units, random.uniform(least, most, len(units)).tolist(), strict=True))
        mine = np.array([units[position[:level]] for position in positions])
        latency = np.where(common == level, mine[:, None], latency)
    return np.where(common == len(turn_us), turn_us[-1][0], latency)  # on one host


def _disturbed(
    latency: np.ndarray,
    bandwidth: np.ndarray,
    disturbance: Disturbance,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    n = len(latency)
    stack = random.uniform(0.0, disturbance.stack_us, n)
    latency = latency + stack[:, None] + stack
    made: list[np.ndarray] = []
    for truth, worse in ((latency, 1.0), (bandwidth, -1.0)):
        out, into = disturbance.asymmetry * random.standard_normal((2, n))
        noise = disturbance.noise * random.standard_normal((n, n))
        slowed = random.random((n, n)) < disturbance.competing
        traffic = np.where(slowed, np.log(random.uniform(1.5, 5.0, (n, n))), 0.0)
        made.append(truth * np.exp(out[:, None] + into + noise + worse * traffic))
    return made[0], made[1]
