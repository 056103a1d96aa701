"""Hidden hardware inferred from generated probe tables with noise, outliers and holes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.instruments.simulated_hardware import SimulatedBox, simulate_probes
from headrace.collectives.measure.pcie.inference import Hardware, infer_hardware
from headrace.collectives.measure.pcie.probes import HardwareProbes, ProbeKind
from headrace.errors import InputError

BOXES = {
    # NDv2 as TACCL found it: each CPU has two switches of two GPUs, the NIC sits on one of them
    "ndv2": SimulatedBox(
        switch_cpu=(0, 0, 1, 1), gpu_switch=(0, 0, 1, 1, 2, 2, 3, 3), nic_switch=1
    ),
    "scrambled": SimulatedBox(
        switch_cpu=(0, 0, 1, 1), gpu_switch=(3, 1, 0, 2, 1, 0, 3, 2), nic_cpu=1, nic_switch=3
    ),
    "no sharing": SimulatedBox(switch_cpu=(0,) * 4, gpu_switch=(0, 1, 2, 3), nic_switch=-1),
    "one switch": SimulatedBox(switch_cpu=(0,), gpu_switch=(0, 0, 0, 0)),
    "two of four": SimulatedBox(
        switch_cpu=(0, 1), gpu_switch=(0, 0, 0, 0, 1, 1, 1, 1), nic_cpu=1, nic_switch=1
    ),
    "own root port": SimulatedBox(
        switch_cpu=(0, 1), gpu_switch=(0, 0, 1, 1), nic_cpu=1, nic_switch=-1
    ),
}
SIXTEEN = SimulatedBox(
    switch_cpu=(0,) * 4 + (1,) * 4,
    gpu_switch=tuple(gpu // 2 for gpu in range(16)),
    nic_cpu=1,
    nic_switch=5,
)


def right(found: Hardware, box: SimulatedBox) -> bool:
    return (found.nearest_cpu, found.switches, found.nic_gpus) == (
        box.nic_cpu,
        box.switches,
        box.nic_gpus,
    )


def outcomes(box: SimulatedBox, seeds: int, **knobs: float) -> Counter[str]:
    count: Counter[str] = Counter()
    for seed in range(seeds):
        try:
            found = infer_hardware(simulate_probes(box, seed=seed, **knobs))
        except InputError as error:
            assert str(error).startswith("which "), "a refusal names its question"
            count["refused"] += 1
        else:
            count["right" if right(found, box) else "wrong"] += 1
    return count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BOXES)
def test_every_seed_is_right_at_low_noise(name: str) -> None:
    assert outcomes(BOXES[name], 25, noise=0.03) == {"right": 25}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BOXES)
def test_noise_outliers_and_holes_cost_answers_but_not_truth(name: str) -> None:
    count = outcomes(BOXES[name], 30, noise=0.1, outliers=0.05, missing=0.02)
    assert count["wrong"] <= 1
    assert count["right"] >= 15


@pytest.mark.sampled(2)
@pytest.mark.parametrize("noise", [0.2, 0.4, 0.8])
def test_too_much_noise_is_refused_rather_than_guessed(noise: float) -> None:
    for box in BOXES.values():
        count = outcomes(box, 12, noise=noise, repeats=3, outliers=0.1)
        assert count["wrong"] <= 1, box


def test_single_runs() -> None:
    count = outcomes(BOXES["ndv2"], 30, noise=0.03, repeats=1)
    assert count["right"] >= 28
    assert count["wrong"] == 0


def test_sixteen_gpus() -> None:
    assert outcomes(SIXTEEN, 4, noise=0.05) == {"right": 4}


def test_the_way_between_sockets_is_no_switch() -> None:
    # copies of two far GPUs to CPU 0 contend between the sockets, as hard as on a switch
    box = replace(BOXES["ndv2"], socket_gb_per_s=12.0)
    assert right(infer_hardware(simulate_probes(box, noise=0.03)), box)


def test_figures_come_with_the_answers() -> None:
    found = infer_hardware(simulate_probes(BOXES["ndv2"], noise=0.02))
    assert found.loopback_us == pytest.approx((1.9, 2.5), rel=0.03)
    assert found.pair_ratio == pytest.approx(0.5, rel=0.05)
    assert found.switch_gb_per_s == pytest.approx(12.0, rel=0.05)
    assert min(found.cpu_confidence, found.switch_confidence, found.nic_confidence) > 0.99
    unshared = infer_hardware(simulate_probes(BOXES["no sharing"], noise=0.02))
    assert unshared.pair_ratio is unshared.switch_gb_per_s is None


def without(probes: HardwareProbes, left_out: np.ndarray) -> HardwareProbes:
    names = ("probe", "gpu", "other", "cpu", "value")
    return replace(probes, **{name: getattr(probes, name)[~left_out] for name in names})


def test_missing_probes_are_replaced_or_inferred() -> None:
    box = BOXES["ndv2"]
    probes = simulate_probes(box, noise=0.02)
    no_baseline = without(probes, (probes.probe == ProbeKind.ALONE) & (probes.gpu == 3))
    found = infer_hardware(no_baseline)
    assert right(found, box)
    assert any("GPU 3 was not probed alone" in note for note in found.notes)
    one_way = without(probes, (probes.probe == ProbeKind.PAIR) & (probes.gpu > probes.other))
    assert right(infer_hardware(one_way), box)
    no_from = infer_hardware(without(probes, probes.probe == ProbeKind.FROM_CPU))
    assert right(no_from, box)
    assert any("'alone' replaces it" in note for note in no_from.notes)


def test_an_undecided_question_is_named() -> None:
    probes = simulate_probes(BOXES["ndv2"], noise=0.02)
    both = ((probes.gpu == 4) & (probes.other == 5)) | ((probes.gpu == 5) & (probes.other == 4))
    with pytest.raises(InputError, match=r"share a PCIe switch: .* 4\+5 were not probed"):
        infer_hardware(without(probes, (probes.probe == ProbeKind.PAIR) & both))
    with pytest.raises(InputError, match=r"no 'loopback' of CPU 1"):
        infer_hardware(without(probes, (probes.probe == ProbeKind.LOOPBACK) & (probes.cpu == 1)))
    with pytest.raises(InputError, match="there are no 'pair' probes"):
        infer_hardware(without(probes, probes.probe == ProbeKind.PAIR))
    nic = (probes.probe == ProbeKind.BESIDE_NIC) & ((probes.gpu == 2) | (probes.gpu == 3))
    with pytest.raises(InputError, match=r"with the NIC: GPUs .2, 3. .probability 0.50. or no GPU"):
        infer_hardware(without(probes, nic))
    elsewhere = replace(probes, cpu=np.where(probes.probe == ProbeKind.BESIDE_NIC, 1, probes.cpu))
    with pytest.raises(InputError, match=r"CPUs \[1\], but none with CPU 0"):
        infer_hardware(elsewhere)
    equal = simulate_probes(replace(BOXES["ndv2"], far_us=1.9), noise=0.05)
    with pytest.raises(InputError, match="which CPU is nearest to the NIC: the loopbacks of CPU"):
        infer_hardware(equal)


def test_one_gpu_and_one_cpu() -> None:
    box = SimulatedBox(switch_cpu=(0,), gpu_switch=(0,))
    found = infer_hardware(simulate_probes(box, noise=0.02))
    assert (found.switches, found.nic_gpus, found.nearest_cpu) == (((0,),), (0,), 0)
