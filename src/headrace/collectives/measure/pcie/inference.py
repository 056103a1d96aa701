"""Inference of the hardware behind a virtual PCIe bus, from probes (TACCL, dissertation 5.3).

Three questions, each answered with a probability, or left undecided with an error:

- *Which CPU is nearest to the NIC?* The one whose loopbacks are fastest.
- *Which GPUs share a PCIe switch?* Those that slow each other down in copies to a CPU at once.
- *Which of them share it with the NIC?* Those that a loopback in the nearest CPU's memory slows.

A rate is classified by the logarithm of its ratio to the same copy alone: near 0, or near that of
half a switch. Repeated runs give the noise; medians and Student's t tolerate outliers. Sharing a
switch is an equivalence relation, so the GPUs are partitioned (`partition`) rather than classified
in pairs, and a switch shares with the NIC as a whole, one switch at most.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.collectives.measure.pcie.probes import HardwareProbes, ProbeKind
from headrace.collectives.measure.racks.partition import Grouping, PartitionEstimate, best_partition
from headrace.errors import InputError

LEAST_CONFIDENCE = 0.95
"""Below this probability a question counts as undecided."""

_NEARER = np.log(1.03)  # least advantage of a nearer CPU
_CONTENDED = (np.log(0.35), np.log(0.75))  # range of rates over those alone, on a shared switch
_HALF = np.log(0.5)
_DIVIDE = np.log(0.72)  # initial threshold between contended and free
_LEAST_NOISE = 0.01
_LONE_NOISE = 0.1  # of a single run, if nothing is repeated
_FEW = 3  # fewer runs have no robust median: all may have been disturbed
_FROM_FEW = 3.0  # most evidence (logarithm of a likelihood ratio) from few runs
_FREEDOM = 4.0  # degrees of freedom of Student's t: an outlier is evidence, but little


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Hardware inferred from probes.

    Attributes
    ----------
    nearest_cpu : of the NIC.
    switches : GPUs by PCIe switch; every GPU is in one group, alone if it shares with none.
    nic_gpus : those that share a PCIe switch with the NIC; empty if none does.
    cpu_confidence, switch_confidence, nic_confidence : probabilities of the three answers.
    loopback_us : median of each CPU's loopbacks.
    pair_ratio : rate of a GPU while another of its switch copies too, over its rate alone; None
        if no GPUs share a switch.
    switch_gb_per_s : median rate of two GPUs of one switch together; None if there are none.
    notes : missing probes and their substitutes.
    """

    nearest_cpu: int
    switches: Grouping
    nic_gpus: tuple[int, ...]
    cpu_confidence: float
    switch_confidence: float
    nic_confidence: float
    loopback_us: tuple[float, ...]
    pair_ratio: float | None
    switch_gb_per_s: float | None
    notes: tuple[str, ...]


def infer_hardware(probes: HardwareProbes, least_confidence: float = LEAST_CONFIDENCE) -> Hardware:
    """Answer the three questions from recorded probes.

    Raises
    ------
    InputError : if a probe that a question needs is missing altogether, or if the data do not
        decide a question with `least_confidence`; it names the question, the next best answer, and
        the probes to repeat.
    """
    notes: list[str] = []
    loopback_us, cpu, cpu_sure = _nearest_cpu(probes, least_confidence)
    alone = _alone(probes, notes)
    evidence, contended = _pair_evidence(probes, alone)
    switches = best_partition(evidence)
    if switches.confidence < least_confidence:
        raise _undecided_switches(switches, evidence)
    nic_gpus, nic_sure = _nic_switch(probes, cpu, alone, switches.groups, least_confidence, notes)
    switched = [group for group in switches.groups if len(group) > 1]
    return Hardware(
        nearest_cpu=cpu,
        switches=switches.groups,
        nic_gpus=nic_gpus,
        cpu_confidence=cpu_sure,
        switch_confidence=switches.confidence,
        nic_confidence=nic_sure,
        loopback_us=loopback_us,
        pair_ratio=float(np.exp(contended)) if switched else None,
        switch_gb_per_s=_switch_rate(probes, switched) if switched else None,
        notes=tuple(notes),
    )


def _noise(cells: Iterable[np.ndarray]) -> float:
    """Return the standard deviation of one run, from the differences between repeats."""
    differences = [np.abs(v[:, None] - v[None, :])[np.triu_indices(len(v), 1)] for v in cells]
    pooled = np.concatenate([np.empty(0), *differences])
    if len(pooled) == 0:
        return _LONE_NOISE
    return max(float(np.median(pooled)) / (0.6745 * np.sqrt(2.0)), _LEAST_NOISE)


def _median_error(noise: float, runs: int) -> float:
    """Return the standard error of a median of `runs` runs."""
    return noise * float(np.sqrt((1.0 if runs < 3 else np.pi / 2) / runs))


def _nearest_cpu(
    probes: HardwareProbes, least_confidence: float
) -> tuple[tuple[float, ...], int, float]:
    from scipy.special import stdtr

    cells = {cpu: values for (_, _, cpu), values in probes.logs(ProbeKind.LOOPBACK).items()}
    for cpu in range(probes.cpus):
        if cpu not in cells:
            raise InputError(
                f"which CPU is nearest to the NIC: there is no 'loopback' of CPU {cpu}, needs some "
                f"of each of 0 to {probes.cpus - 1}"
            )
    noise = _noise(cells.values())
    middle = {cpu: float(np.median(values)) for cpu, values in cells.items()}
    error = {cpu: _median_error(noise, len(values)) for cpu, values in cells.items()}
    best = min(middle, key=middle.__getitem__)
    nearer = {
        cpu: float(
            stdtr(_FREEDOM, (level - middle[best] - _NEARER) / np.hypot(error[cpu], error[best]))
        )
        for cpu, level in middle.items()
        if cpu != best
    }
    sure = math.prod(nearer.values())
    if sure < least_confidence:
        rival = min(nearer, key=nearer.__getitem__)
        raise InputError(
            f"which CPU is nearest to the NIC: the loopbacks of CPU {best} take "
            f"{np.exp(middle[best]):.3g} us, those of CPU {rival} {np.exp(middle[rival]):.3g} us "
            f"(medians, {noise:z.0%} noise), which decides it with probability {sure:.2f} only; "
            f"needs {least_confidence:.2f}: repeat 'loopback' probes of both, more often or on an "
            "idle box"
        )
    return tuple(float(np.exp(middle[cpu])) for cpu in range(probes.cpus)), best, sure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Baseline:
    """A GPU's rate alone: logarithm and standard error."""

    level: float
    error: float


def _alone(probes: HardwareProbes, notes: list[str]) -> dict[tuple[int, int], _Baseline]:
    """Return every GPU's rate alone, by (gpu, cpu); missing ones from other GPUs."""
    cells = probes.logs(ProbeKind.ALONE)
    noise = _noise(cells.values())
    levels = {(gpu, cpu): float(np.median(values)) for (gpu, _, cpu), values in cells.items()}
    measured: dict[tuple[int, int], _Baseline] = {}
    for (gpu, _, cpu), values in cells.items():
        level, error = levels[gpu, cpu], _median_error(noise, len(values))
        if len(values) < _FEW:  # a disturbed run would go unnoticed: compare with other GPUs
            others = [level_of for (g, c), level_of in levels.items() if c == cpu and g != gpu]
            error = max(error, abs(level - float(np.median(others or [level]))) / 2)
        measured[gpu, cpu] = _Baseline(level=level, error=error)
    baselines: dict[tuple[int, int], _Baseline] = {}
    for gpu, cpu in sorted({(g, c) for g, _, c in probes.logs(ProbeKind.PAIR)} | set(measured)):
        if (gpu, cpu) in measured:
            baselines[gpu, cpu] = measured[gpu, cpu]
            continue
        others = [b.level for (_, c), b in measured.items() if c == cpu]
        if others:
            spread = float(np.std(others)) if len(others) > 2 else _LONE_NOISE
            baselines[gpu, cpu] = _Baseline(
                level=float(np.median(others)), error=max(spread, 2 * noise)
            )
            notes.append(f"GPU {gpu} was not probed alone with CPU {cpu}: the others' median is")
    return baselines


def _pair_evidence(
    probes: HardwareProbes, alone: Mapping[tuple[int, int], _Baseline]
) -> tuple[np.ndarray, float]:
    """Return log-likelihood ratios of sharing, (gpus, gpus), and the log of the contended level."""
    cells = {key: v for key, v in probes.logs(ProbeKind.PAIR).items() if (key[0], key[2]) in alone}
    evidence = np.zeros((probes.gpus, probes.gpus))
    if not cells:
        if probes.gpus > 1:
            raise InputError(
                "which GPUs share a PCIe switch: there are no 'pair' probes with the 'alone' "
                "probes that they are compared with; needs both, with the same CPU"
            )
        return evidence, _HALF
    noise = _noise(cells.values())
    level = {k: float(np.median(v)) - alone[k[0], k[2]].level for k, v in cells.items()}
    keys = _least_contended(level)
    error = [np.hypot(_median_error(noise, len(cells[k])), alone[k[0], k[2]].error) for k in keys]
    value = np.array([level[k] for k in keys])
    free, contended, scale = _levels(value, np.array(error))
    ratio = _log_t(value, contended, scale) - _log_t(value, free, scale)
    few = np.array([len(cells[k]) < _FEW for k in keys])
    ratio = np.where(few, np.clip(ratio, -_FROM_FEW, _FROM_FEW), ratio)
    for (gpu, peer, _), log_ratio in zip(keys, ratio.tolist(), strict=True):
        evidence[gpu, peer] += log_ratio
        evidence[peer, gpu] += log_ratio
    return evidence, contended


def _least_contended(level: Mapping[tuple[int, int, int], float]) -> list[tuple[int, int, int]]:
    """Return the cells of every pair with the CPU at which its two GPUs disturb each other least.

    GPUs of one switch slow each other down whichever CPU they copy to. Two of the far socket may do
    so on the link between the sockets, though only to one CPU.
    """
    cpus: dict[tuple[int, int], dict[int, list[tuple[int, int, int]]]] = {}
    for gpu, peer, cpu in level:
        pair = cpus.setdefault((min(gpu, peer), max(gpu, peer)), {})
        pair.setdefault(cpu, []).append((gpu, peer, cpu))
    quietest: list[tuple[int, int, int]] = []
    for by_cpu in cpus.values():
        most = max(map(len, by_cpu.values()))  # both directions rather than one
        complete = [cells for cells in by_cpu.values() if len(cells) == most]
        quietest += max(complete, key=lambda cells: sum(level[cell] for cell in cells))
    return quietest


def _levels(level: np.ndarray, error: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the levels of free and contended rates, and the spread of single ones around them."""
    free, contended = 0.0, _HALF
    divide, scale = _DIVIDE, error
    for _ in range(10):
        low = level < divide
        if low.any():
            contended = float(np.clip(np.median(level[low]), *_CONTENDED))
        if not low.all():
            free = float(np.clip(np.median(level[~low]), -0.15, 0.05))
        # variation that repeats do not show: between separate probes
        strays = np.minimum(np.abs(level - free), np.abs(level - contended))
        scale = np.maximum(error, 1.4826 * float(np.median(strays)))
        divide = (free + contended) / 2
    return free, contended, scale


def _log_t(
    value: np.ndarray | np.float64, mean: np.ndarray | float, scale: np.ndarray | float
) -> np.ndarray:
    """Return the log-density of Student's t, up to terms of `scale` alone."""
    return -(_FREEDOM + 1) / 2 * np.log1p(((value - mean) / scale) ** 2 / _FREEDOM)


def _undecided_switches(switches: PartitionEstimate, evidence: np.ndarray) -> InputError:
    rival = switches.rival or ()
    mine, theirs = (
        {(a, b) for group in groups for a in group for b in group if a < b}
        for groups in (switches.groups, rival)
    )
    pairs = sorted(mine ^ theirs)
    blind = [pair for pair in pairs if evidence[pair] == 0.0]
    why = f"; pairs {_pairs(blind)} were not probed" if blind else ""
    return InputError(
        f"which GPUs share a PCIe switch: {_sets(switches.groups)} has probability "
        f"{switches.confidence:.2f} only, its rival is {_sets(rival)}{why}; probe GPUs "
        f"{_pairs(pairs)} again, alone and in pairs, more often or on an idle box"
    )


def _sets(groups: Grouping) -> str:
    return " ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{a}+{b}" for a, b in pairs)


def _nic_switch(
    probes: HardwareProbes,
    cpu: int,
    alone: Mapping[tuple[int, int], _Baseline],
    groups: Grouping,
    least_confidence: float,
    notes: list[str],
) -> tuple[tuple[int, ...], float]:
    """Return the switch that the NIC's loopbacks slow down, or (), and its probability."""
    beside = {gpu: v for (gpu, _, c), v in probes.logs(ProbeKind.BESIDE_NIC).items() if c == cpu}
    if not beside:
        elsewhere = sorted(set(probes.cpu[probes.probe == ProbeKind.BESIDE_NIC].tolist()))
        raise InputError(
            "which GPUs share a PCIe switch with the NIC: there are 'beside_nic' probes with "
            f"{f'CPUs {elsewhere}' if elsewhere else 'no CPU'}, but none with CPU {cpu}, which is "
            f"nearest to the NIC: copy from CPU {cpu} during loopbacks in its memory"
        )
    level, error = _slowdown(probes, cpu, alone, beside, notes)
    free, _, scale = _levels(np.array(list(level.values())), np.array(list(error.values())))
    scales = dict(zip(level, scale.tolist(), strict=True))
    grid = np.linspace(*_CONTENDED, 40)
    hypotheses: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for group in groups:
        probed = [gpu for gpu in group if gpu in level]
        ratios = np.zeros(len(grid))  # the rate left for the GPUs depends on the NIC's
        for gpu in probed:
            value, likeliest = np.float64(level[gpu]), scales[gpu]
            ratio = _log_t(value, grid, likeliest) - _log_t(value, free, likeliest)
            most = _FROM_FEW if len(beside[gpu]) < _FEW else np.inf
            ratios += np.clip(ratio, -most, most)
        hypotheses.append((float(np.log(np.mean(np.exp(ratios)))), group))
    (first, best), (_, rival) = sorted(hypotheses, reverse=True)[:2]
    sure = 1.0 / float(np.exp([value - first for value, _ in hypotheses]).sum())
    if sure < least_confidence:
        likeliest, second = (f"GPUs {list(gpus)}" if gpus else "no GPU" for gpus in (best, rival))
        raise InputError(
            f"which GPUs share a PCIe switch with the NIC: {likeliest} (probability {sure:.2f}) or "
            f"{second}? Needs {least_confidence:.2f}: repeat 'beside_nic' and 'from_cpu' probes "
            f"of GPUs {sorted({*best, *rival})} with CPU {cpu}"
        )
    return best, sure


def _slowdown(
    probes: HardwareProbes,
    cpu: int,
    alone: Mapping[tuple[int, int], _Baseline],
    beside: Mapping[int, np.ndarray],
    notes: list[str],
) -> tuple[dict[int, float], dict[int, float]]:
    """Return log of rate beside the NIC over rate alone, and its error, by GPU."""
    base_runs = {gpu: v for (gpu, _, c), v in probes.logs(ProbeKind.FROM_CPU).items() if c == cpu}
    noise = _noise([*beside.values(), *base_runs.values()])
    level: dict[int, float] = {}
    error: dict[int, float] = {}
    for gpu, values in sorted(beside.items()):
        if gpu in base_runs:
            base = float(np.median(base_runs[gpu]))
            base_error = _median_error(noise, len(base_runs[gpu]))
        elif (gpu, cpu) in alone:
            base, base_error = alone[gpu, cpu].level, alone[gpu, cpu].error
            notes.append(f"GPU {gpu} has no 'from_cpu' probe with CPU {cpu}: 'alone' replaces it")
        else:
            notes.append(f"GPU {gpu} has no probe alone with CPU {cpu}: left out at the NIC")
            continue
        level[gpu] = float(np.median(values)) - base
        error[gpu] = float(np.hypot(_median_error(noise, len(values)), base_error))
    if not level:
        raise InputError(
            "which GPUs share a PCIe switch with the NIC: no GPU was probed alone with CPU "
            f"{cpu}; needs 'from_cpu' probes to compare 'beside_nic' with"
        )
    return level, error


def _switch_rate(probes: HardwareProbes, switched: list[tuple[int, ...]]) -> float:
    """Return the median GB/s of two GPUs of one switch together."""
    cells = probes.logs(ProbeKind.PAIR)
    pairs = {(a, b) for group in switched for a in group for b in group if a < b}
    return float(
        np.median(
            [
                np.exp(np.median(values)) + np.exp(np.median(cells[b, a, cpu]))
                for (a, b, cpu), values in cells.items()
                if (a, b) in pairs and (b, a, cpu) in cells
            ]
            or [2 * np.exp(np.median(np.concatenate([*cells.values()])))]
        )
    )
