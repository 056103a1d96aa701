"""Simulated probe tables of a known box, to test what `hardware` infers."""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.measure.pcie.probes import HardwareProbes, ProbeKind, ProbeRow
from headrace.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBox:
    """True hardware of a simulated machine.

    Attributes
    ----------
    switch_cpu : for every PCIe switch, the CPU that it is attached to.
    gpu_switch : for every GPU, its switch.
    nic_cpu : the CPU that the NIC is attached to.
    nic_switch : the NIC's switch; -1 for a root port of its own.
    lane_gb_per_s, socket_gb_per_s, nic_gb_per_s : rates of a GPU's lanes and of a switch's uplink
        (equal), between the sockets, and of the NIC.
    near_us, far_us : loopback latency by the NIC's CPU and by another.
    """

    switch_cpu: tuple[int, ...]
    gpu_switch: tuple[int, ...]
    nic_cpu: int = 0
    nic_switch: int = 0
    lane_gb_per_s: float = 12.0
    socket_gb_per_s: float = 18.0
    nic_gb_per_s: float = 10.0
    near_us: float = 1.9
    far_us: float = 2.5

    def __post_init__(self) -> None:
        for gpu, switch in enumerate(self.gpu_switch):
            if not 0 <= switch < len(self.switch_cpu):
                raise InputError(
                    f"gpu_switch[{gpu}] is {switch}, needs 0 to {len(self.switch_cpu) - 1}"
                )

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.gpu_switch)

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return max(*self.switch_cpu, self.nic_cpu) + 1

    @property
    def switches(self) -> tuple[tuple[int, ...], ...]:
        """GPUs by switch."""
        groups: dict[int, list[int]] = {}
        for gpu, switch in enumerate(self.gpu_switch):
            groups.setdefault(switch, []).append(gpu)
        return tuple(sorted(map(tuple, groups.values())))

    @property
    def nic_gpus(self) -> tuple[int, ...]:
        """GPUs on the NIC's switch."""
        return tuple(g for g, switch in enumerate(self.gpu_switch) if switch == self.nic_switch)

    def rate(self, gpu: int, cpu: int, other: int = -1, *, nic: bool = False) -> float:
        """Return GB/s of a copy between `gpu` and `cpu`, while `other` or the NIC is active too."""
        limits = [self.lane_gb_per_s]
        mine = self.gpu_switch[gpu]
        far = self.switch_cpu[mine] != cpu
        both_far = other >= 0 and far and self.switch_cpu[self.gpu_switch[other]] != cpu
        if far:
            limits.append(self.socket_gb_per_s / (2 if both_far else 1))
        if other >= 0 and self.gpu_switch[other] == mine:
            limits.append(self.lane_gb_per_s / 2)
        if nic and self.nic_switch == mine:
            limits.append(max(self.lane_gb_per_s - self.nic_gb_per_s, self.lane_gb_per_s / 2))
        return min(limits)


def simulate_probes(
    box: SimulatedBox,
    *,
    seed: int = 0,
    repeats: int = 5,
    loopbacks: int = 50,
    noise: float = 0.05,
    outliers: float = 0.0,
    missing: float = 0.0,
    cpus: tuple[int, ...] | None = None,
) -> HardwareProbes:
    """Return simulated probes of `box`.

    Parameters
    ----------
    repeats, loopbacks : runs of every copy, and of every loopback (they take microseconds).
    noise : standard deviation of the logarithm of every value (log-normal noise).
    outliers : fraction of disturbed runs, by a factor of 1.3 to 3.
    missing : fraction of probes (with all their repeats) that are not in the table; loopbacks are
        never left out.
    cpus : those that the GPUs copy to when alone or in pairs (default: all).
    """
    random = np.random.default_rng(seed)
    rows: list[ProbeRow] = []

    def add(probe: ProbeKind, gpu: int, other: int, cpu: int, value: float) -> None:
        if probe != ProbeKind.LOOPBACK and random.random() < missing:
            return
        for _ in range(loopbacks if probe == ProbeKind.LOOPBACK else repeats):
            factor = float(np.exp(random.normal(0.0, noise)))
            if random.random() < outliers:
                slower = float(random.uniform(1.3, 3.0))
                factor *= slower if probe == ProbeKind.LOOPBACK else 1 / slower
            rows.append((probe, gpu, other, cpu, value * factor))

    for cpu in range(box.cpus):
        add(ProbeKind.LOOPBACK, -1, -1, cpu, box.near_us if cpu == box.nic_cpu else box.far_us)
    for cpu in range(box.cpus) if cpus is None else cpus:
        for gpu in range(box.gpus):
            add(ProbeKind.ALONE, gpu, -1, cpu, box.rate(gpu, cpu))
            for other in range(box.gpus):
                if other != gpu:
                    add(ProbeKind.PAIR, gpu, other, cpu, box.rate(gpu, cpu, other))
    for gpu in range(box.gpus):
        add(ProbeKind.FROM_CPU, gpu, -1, box.nic_cpu, box.rate(gpu, box.nic_cpu))
        add(ProbeKind.BESIDE_NIC, gpu, -1, box.nic_cpu, box.rate(gpu, box.nic_cpu, nic=True))
    return HardwareProbes.of(box.cpus, box.gpus, rows, {"made by": "simulate_probes", "seed": seed})
