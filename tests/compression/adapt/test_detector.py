"""Norms of accumulated gradients."""

import math

import pytest
import torch

from headrace.compression.adapt.detector import Detector
from tests.compression.device_double import DeviceTensor, Double


def test_norms_and_noise_of_the_mean_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    steps = torch.randn(7, 3, 5, generator=generator).double() + 0.5
    detector = Detector({"w": (3, 5), "idle": (4,)}, noisy=True)
    for number, step in enumerate(steps):
        scale = 2.0**number  # a gradient scaler changes its factor between steps
        detector.add("w", (step * scale).float(), scale=scale)
    norms = detector.norms()
    mean = steps.mean(0)
    assert norms == {"w": pytest.approx(float(mean.norm()), rel=1e-6), "idle": 0.0}
    deviation = math.sqrt(float(((steps - mean) ** 2).sum() / 7))
    assert detector.noise(norms) == {"w": pytest.approx(deviation, rel=1e-5)}
    assert detector.memory_bytes == 4 * 19


def test_it_goes_on_from_its_state() -> None:
    first, second = Detector({"w": (2,)}, noisy=True), Detector({"w": (2,)}, noisy=True)
    first.add("w", torch.tensor([1.0, 2.0]))
    first.add("w", torch.tensor([3.0, 2.0]))
    second.load_state_dict(first.state_dict())
    for each in (first, second):
        each.add("w", torch.tensor([5.0, -1.0]))
    assert first.norms() == second.norms() == {"w": pytest.approx(math.hypot(3, 1))}
    assert first.noise(first.norms()) == second.noise(second.norms())
    first.reset()
    assert first.norms() == {"w": 0.0}


def test_sums_that_were_loaded_elsewhere_follow_the_gradient() -> None:
    whole, again = (Detector({"a": (3, 4), "b": (5,)}, noisy=True) for _ in range(2))
    whole.add("a", torch.ones(3, 4))
    again.load_state_dict(whole.state_dict())
    gradient = torch.arange(12.0)
    whole.add("a", gradient)
    with Double() as double:
        again.add("a", DeviceTensor(gradient))
        assert again.norms() == whole.norms()
        norms = whole.norms()
        assert again.noise(norms) == whole.noise(norms)
    assert all(isinstance(each, DeviceTensor) for each in again._sums.values())
    assert set(double.waits) <= {"aten.copy_.default", "aten._to_copy.default"}  # as it moves


def test_sums_are_of_32_bits_whatever_type_is_a_scripts_default() -> None:
    """With torch.set_default_dtype(torch.bfloat16) a sum of ones ended at 256."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        detector = Detector({"w": (4,)})
        for _ in range(1000):
            detector.add("w", torch.ones(4, dtype=torch.float32))
    finally:
        torch.set_default_dtype(default)
    assert detector.norms() == {"w": pytest.approx(2.0)}
