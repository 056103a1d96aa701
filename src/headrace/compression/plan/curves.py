"""Curves of the utility study (4.2.5): bandwidth, compute, and cost against compression."""

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.step import DURING, MODES, StepWork, step_time, step_work
from headrace.compression.plan.whatif import needed_compression
from headrace.compression.profile import CompressionProfile
from headrace.units import FASTEST, SLOWEST

Curve = tuple[list[float], list[float | None]]
"""Values along the horizontal axis, and the vertical ones."""

_POINTS = 41
BATCHES = (0.25, 0.5, 1.0)
"""Batches of the paper's curves of scaling (Figures 4.7, 4.8 and 4.11), relative to the profile's:
16, 32 and 64."""
EXPONENTS = (1, 2, 3)
"""l of the trade of encode time for compression (Figure 4.14)."""


def bandwidths(network: FormulaNetwork) -> list[float]:
    """Return the bandwidths of a curve, a tenth to ten times the network's, in bytes per second."""
    middle = network.bandwidth_bytes_per_s
    return np.geomspace(max(SLOWEST, middle / 10), min(FASTEST, middle * 10), _POINTS).tolist()


def fastest_work(
    profile: CompressionProfile, codec: CodecSpec, network: FormulaNetwork
) -> StepWork:
    """Return the step of a codec in the mode that is faster on this network."""
    modes = (DURING,) if codec == NONE else MODES
    works = [step_work(profile, codec, network.workers, mode) for mode in modes]
    return min(works, key=lambda work: step_time(work, network).total_us)


def speed_up_by_bandwidth(
    profile: CompressionProfile, codecs: Sequence[CodecSpec], network: FormulaNetwork
) -> Mapping[str, Curve]:
    """Return speed-ups over no compression by bandwidth (Figures 4.10 and 4.12)."""
    rates = bandwidths(network)
    steps: dict[str, list[float]] = {}
    for codec in (NONE, *codecs):
        there = [network.at_bandwidth(rate) for rate in rates]
        steps[str(codec)] = [
            step_time(fastest_work(profile, codec, at), at).total_us for at in there
        ]
    none = steps.pop(str(NONE))
    return {
        name: (rates, [a / b for a, b in zip(none, times, strict=True)])
        for name, times in steps.items()
    }


def needed_by_bandwidth(
    profile: CompressionProfile, network: FormulaNetwork
) -> Mapping[str, Curve]:
    """Return the compression for near-linear scaling, by batch (Figures 4.8 and 4.11)."""
    rates = bandwidths(network)
    plain = step_work(profile, NONE, network.workers, DURING)
    return {
        f"batch {profile.batch * share:g}": (
            rates,
            [
                needed_compression(plain.scaled(compute=share), network.at_bandwidth(rate))
                for rate in rates
            ],
        )
        for share in BATCHES
    }


def speed_up_by_compute(
    profile: CompressionProfile, codec: CodecSpec, network: FormulaNetwork
) -> Curve:
    """Return a codec's speed-up where compute, its own too, is 1 to 4 times faster (4.13)."""
    factors = np.linspace(1, 4, 13).tolist()
    plain, coded = fastest_work(profile, NONE, network), fastest_work(profile, codec, network)
    gains: list[float | None] = []
    for factor in factors:
        none = step_time(plain.scaled(compute=1 / factor), network).total_us
        times = coded.scaled(compute=1 / factor, coding=1 / factor)
        gains.append(none / step_time(times, network).total_us)
    return factors, gains


def cost_against_compression(
    profile: CompressionProfile, codec: CodecSpec, network: FormulaNetwork
) -> Mapping[str, Curve]:
    """Return the step in ms of codecs that encode k times faster and send k^l the bytes (4.14)."""
    coded = fastest_work(profile, codec, network)
    factors = np.linspace(1, 4, 13).tolist()
    return {
        f"l = {exponent}": (
            factors,
            [
                step_time(coded.scaled(coding=1 / k, exchanged=k**exponent), network).total_us / 1e3
                for k in factors
            ],
        )
        for exponent in EXPONENTS
    }
