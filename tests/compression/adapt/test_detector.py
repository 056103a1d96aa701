"""Norms of accumulated gradients."""

import math
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from headrace.compression import ExchangeError
from headrace.compression.adapt.detector import Detector, compare_ranks, fingerprint
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


def test_fingerprints_tell_decisions_apart() -> None:
    assert fingerprint({"w": "powersgd:1"}) == fingerprint({"w": "powersgd:1"})
    assert fingerprint({"w": "powersgd:1"}) != fingerprint({"w": "powersgd:2"})
    assert 0 <= fingerprint("any") < 2**63


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


def _compare_without_the_last(rank: int, ranks: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    compare_ranks("equal", "levels of compression")
    if rank == ranks - 1:
        os._exit(0)  # closes its connections; no report
    with pytest.raises(ExchangeError, match=r"^levels of compression: rank 2 did not") as caught:
        compare_ranks("equal", "levels of compression")
    assert caught.value.missing == (ranks - 1,)
    dist.destroy_process_group()


def test_a_rank_that_is_missing_from_a_comparison_is_named(tmp_path: Path) -> None:
    """The error was Gloo's own, with an address on one rank and none on the others."""
    arguments = (3, str(tmp_path / "store"))
    mp.spawn(_compare_without_the_last, arguments, nprocs=3)  # pyright: ignore[reportPrivateImportUsage]
