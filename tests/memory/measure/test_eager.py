"""Eager's own step: its peak is that of the user's, and the job is as before."""

from pathlib import Path

import pytest
import torch
from torch import nn

from headrace.memory import fit
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.available import available_bytes
from headrace.memory.measure.eager import eager_cost
from headrace.memory.measure.step import StepConditions, capture_step, profile_step, sample_of
from headrace.memory.measure.timing import Cost
from headrace.memory.profile import MemoryProfile
from tests.memory.failures import INJECTIONS, MOST, Shared
from tests.memory.states import differences, state_of_objects
from tests.tiers import Sample

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for index in range(3):
        layers += [nn.Conv2d(8 if index else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def profile_of(model: nn.Module, sample: object, conditions: StepConditions) -> MemoryProfile:
    captured = capture_step(model, sample, conditions)
    return profile_step(model, captured, conditions, single_runs=True, sample=sample_of(sample))


def resident_bytes(profile: MemoryProfile) -> int:
    resident = profile.graph.resident
    return sum(nbytes for name, nbytes in resident.items() if name != "generators")


@pytest.mark.parametrize("accumulates", [False, True])
def test_the_peak_is_that_of_the_users_step(accumulates: bool) -> None:
    model, loss = network(), nn.CrossEntropyLoss()
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))

    def step() -> None:
        loss(model(images), labels).backward()

    if accumulates:
        step()
    expected = allocations_of(step, CPU, aligned=True).peak_bytes
    conditions = StepConditions(loss=loss, accumulates=accumulates)
    profile = profile_of(model, (images, labels), conditions)
    assert profile.eager is not None
    assert profile.eager.peak_bytes == resident_bytes(profile) + expected
    assert profile.eager.time_us > 0
    assert "eager" not in profile.provenance


def test_a_recurrent_model_without_a_loss_and_a_sample_that_needs_gradients() -> None:
    model, x = nn.LSTM(4, 8, 2), torch.randn(6, 3, 4, requires_grad=True)

    def step() -> None:
        output, states = model(x)
        tensors = (output, *states)
        torch.autograd.backward(tensors, [torch.ones_like(tensor) for tensor in tensors])

    expected = allocations_of(step, CPU, aligned=True).peak_bytes
    x.grad = None
    profile = profile_of(model, x, StepConditions())
    assert profile.eager is not None
    assert profile.eager.peak_bytes == resident_bytes(profile) + expected
    assert x.grad is None


@pytest.mark.parametrize("trained", [False, True])
def test_a_step_that_ends_or_is_interrupted_leaves_the_job(trained: bool, sample: Sample) -> None:
    model, x = Shared(), torch.randn(4, 6, requires_grad=True)
    model.register_buffer("queue", torch.zeros(6))
    if trained:
        model(x).sum().backward()
    captured = capture_step(model, x, StepConditions())

    def measure() -> Cost | str:
        return eager_cost(
            model,
            ((x,), {}),
            captured,
            CPU,
            digest="",
            predicted_bytes=0,
            accumulates=trained,
            costs={},
        )

    before = state_of_objects(model, x)
    with INJECTIONS["operator"](MOST, KeyboardInterrupt) as counted:
        assert isinstance(measure(), Cost)
    assert differences(before, state_of_objects(model, x)) == []
    points = MOST - counted.left
    assert points > 20
    for count in sample.of(range(points), 8):
        with pytest.raises(KeyboardInterrupt), INJECTIONS["operator"](count, KeyboardInterrupt):
            measure()
        changes = differences(before, state_of_objects(model, x))
        assert changes == [], f"interrupted at {count} of {points}"


def test_a_step_that_must_not_run_is_not_run() -> None:
    """Why it was not measured is in the profile; the fit goes on."""

    calls: list[nn.Module] = []

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(self)
            return self.linear(x)

    model, x = Counted(), torch.randn(2, 4)
    captured = capture_step(model, x, StepConditions())
    calls.clear()

    def refused(predicted_bytes: int) -> Cost | str:
        return eager_cost(
            model,
            ((x,), {}),
            captured,
            CPU,
            digest="",
            predicted_bytes=predicted_bytes,
            accumulates=False,
            costs={},
        )

    reason = refused(1 << 50)
    assert isinstance(reason, str)
    assert reason.startswith("it needs about 1024 TiB, ")
    hook = model.linear.weight.register_post_accumulate_grad_hook(lambda _: None)
    assert refused(1) == "parameters have hooks on their gradients"
    hook.remove()
    assert not calls
    assert isinstance(refused(1), Cost)
    assert len(calls) == 2


def test_a_step_that_fails_leaves_the_profile_without_it() -> None:
    """Of a sample only shapes count: its indices may be out of range."""
    model, tokens = nn.Embedding(4, 4), torch.full((3,), 9)
    with pytest.raises(IndexError):
        model(tokens)
    profile = fit(model, tokens, "1MiB", cache=False).plans[0].profile
    assert profile.eager is None
    assert profile.provenance["eager"] == "it failed: IndexError: index out of range in self"


def test_a_step_that_writes_into_its_input_is_not_run() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.add_(1))

    model, x = Shifted(), torch.zeros(2, 4)
    profile = profile_of(model, x, StepConditions())
    assert profile.provenance["eager"] == "it writes into parameters or inputs"
    assert not x.any()


def test_a_measured_step_is_read_from_the_cache() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    profiles = [fit(model, x, budget).plans[0].profile for budget in ("10MiB", "11MiB")]
    assert profiles[0].eager is not None
    assert profiles[0].digest == profiles[1].digest


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_available_memory_is_the_least_that_system_and_groups_leave(tmp_path: Path) -> None:
    assert available_bytes(CPU, tmp_path) is None
    system = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}
    assert available_bytes(CPU, written(tmp_path / "plain", system)) == 8000 << 10
    second = {
        **system,
        "proc/self/cgroup": "0::/jobs/one\n",
        "sys/fs/cgroup/jobs/one/memory.max": "max\n",
        "sys/fs/cgroup/jobs/one/memory.current": "100\n",
        "sys/fs/cgroup/jobs/one/memory.stat": "anon 1\n",
        "sys/fs/cgroup/jobs/memory.max": "5000\n",
        "sys/fs/cgroup/jobs/memory.current": "3000\n",
        "sys/fs/cgroup/jobs/memory.stat": "anon 2000\ninactive_file 700\n",
    }
    assert available_bytes(CPU, written(tmp_path / "second", second)) == 2700
    first = {
        **system,
        "proc/self/cgroup": "5:cpu,memory:/jobs\n4:cpuset:/\n",
        "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": "4096\n",
        "sys/fs/cgroup/memory/jobs/memory.usage_in_bytes": "4000\n",
        "sys/fs/cgroup/memory/jobs/memory.stat": "total_inactive_file 4\n",
    }
    assert available_bytes(CPU, written(tmp_path / "first", first)) == 100
    here = available_bytes(CPU)
    assert here is None or here > 1 << 20
