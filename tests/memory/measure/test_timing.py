"""Times and workspaces of operators."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.memory.errors import CaptureError
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph, Implementation
from headrace.memory.measure import timing
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.arguments import WithLoss
from headrace.memory.measure.capture import capture
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.step import StepConditions, capture_step, profile_step, sample_of
from headrace.memory.measure.timing import (
    Cost,
    Roofline,
    measured_graph,
    modelled,
    relative_spread,
)
from tests.memory.models import CASES

CPU = torch.device("cpu")


def default(graph: Graph, name: str) -> Implementation:
    (found,) = (each for each in graph.operators if each.name == name)
    return found.implementations[0]


def test_every_operator_is_measured() -> None:
    model, inputs = CASES["convolutional"]()
    graph = measured_graph(capture(model, inputs), CPU)
    for each in graph.operators:
        assert each.name == "loss" or each.implementations[0].time_us > 0
    # dropout scales a float copy of its mask
    assert default(graph, "native_dropout").workspace_bytes == 4 * 8 * 16 * 16 * 4
    assert default(graph, "relu").workspace_bytes == 0


class Sampled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = x.sigmoid()
        loss = nn.functional.binary_cross_entropy(share, torch.bernoulli(share.detach()))
        return loss + torch.logdet(x @ x.T + torch.eye(4))


def test_operators_of_shares_and_pivots_are_measured() -> None:
    """Kernels refused the operands: floats above 1 as probabilities, and 0 as a row of pivots."""
    captured = capture(nn.Sequential(nn.Linear(4, 4), Sampled()), (torch.randn(4, 4),))
    names = [each.name for each in measured_graph(captured, CPU, single_runs=True).operators]
    assert {"bernoulli", "binary_cross_entropy", "linalg_lu_solve"} <= set(names)


class Wide(nn.Module):
    """A layer in float32 within autocast, as of losses and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.linear(x)


def test_a_profiler_that_runs_is_named() -> None:
    """A step that was planned within one ended in "Profiler is already enabled on this thread"."""
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(CaptureError, match="a profiler of torch is running"),
    ):
        allocations_of(lambda: torch.zeros(1), CPU)
    assert allocations_of(lambda: torch.zeros(1), CPU).kept_bytes == 4


def test_operators_are_measured_without_the_autocast_of_the_fit() -> None:
    """Those in float32 were run in 16 bits, behind conversions that no step has."""
    x = torch.randn(64, 64)
    alone = measured_graph(capture(Wide(), (x,)), CPU, single_runs=True)
    with torch.autocast("cpu", torch.bfloat16):
        graph = measured_graph(capture(Wide(), (x,)), CPU, single_runs=True)
    for name in ("addmm", "mm"):
        assert default(graph, name).workspace_bytes == default(alone, name).workspace_bytes


def test_repeated_layers_are_measured_once() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))
    captured = capture(model, (torch.randn(8, 16, requires_grad=True),))
    cache: dict[str, Cost] = {}
    graph = measured_graph(captured, CPU, cache)
    assert len(graph.operators) == 5 * 4 + 1
    assert len(cache) == 4  # forward, and gradients of input, weight and bias
    key = next(iter(cache))
    cache[key] = Cost(123.0, 64)
    again = measured_graph(captured, CPU, cache)
    assert [each.implementations[0].time_us for each in again.operators[:5]] == [123.0] * 5
    assert len(cache) == 4


def test_between_runs_no_more_is_filled_than_a_step_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling a cache of 105 MB took most of the 151 s of a tiny model's measurement."""
    captured = capture(nn.Linear(16, 16), (torch.randn(8, 16),))
    filled: list[int] = []
    times_us = timing._times_us  # pyright: ignore[reportPrivateUsage]

    def noted(*arguments: Any) -> list[float]:
        filled.append(arguments[-1].nbytes)
        return times_us(*arguments)

    monkeypatch.setattr(timing, "_times_us", noted)
    costs: dict[str, Cost] = {}
    counts: list[int] = []
    measured_graph(captured, CPU, costs, report=counts.append)
    assert set(filled) <= {4096, 8192}
    assert counts == list(range(len(captured.graph.operators) - 1))
    monkeypatch.setattr(timing, "_cache_bytes", lambda _device: 1024)  # of a smaller device
    measured_graph(captured, CPU, costs)
    assert filled[-1] == 1024
    assert len(costs) == 2 * len(counts)


def test_the_spread_is_of_what_was_measured() -> None:
    costs = [Cost(10.0, 0, 1.0), Cost(30.0, 0, 3.0), Cost(1000.0, 0)]
    assert relative_spread(costs) == pytest.approx(0.1)
    assert relative_spread([Cost(1.0, 0)]) is None


def test_a_measurement_leaves_the_random_generator() -> None:
    model, inputs = CASES["convolutional"]()
    captured = capture(model, inputs)
    before = torch.get_rng_state()
    measured_graph(captured, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_roofline_is_flops_or_bytes() -> None:
    captured = capture(nn.Linear(64, 32), (torch.randn(16, 64),))
    device = Roofline(name="slow", flops_per_s=1e6, bytes_per_s=1e3, launch_us=5.0)
    moved = 4 * (32 + 16 * 64 + 64 * 32 + 16 * 32)
    assert default(modelled(captured, device), "addmm").time_us == pytest.approx(
        5 + moved / 1e3 * 1e6
    )
    device = Roofline(name="wide", flops_per_s=1e6, bytes_per_s=1e12, launch_us=5.0)
    flops = 2 * 16 * 64 * 32
    assert default(modelled(captured, device), "addmm").time_us == pytest.approx(5 + flops)


def test_a_roofline_counts_the_products_of_our_own_operators() -> None:
    rows, width, words = 32, 16, 64
    model = WithLoss(nn.Linear(width, words), nn.CrossEntropyLoss())
    inputs = torch.randn(rows, width, requires_grad=True), torch.zeros(rows, dtype=torch.int64)
    captured = with_implementations(capture(model, inputs), Exactness.ROUNDED)
    device = Roofline(name="slow", flops_per_s=1e6, bytes_per_s=1e12, launch_us=0.0)
    product = 2 * rows * width * words  # microseconds
    found = {each.name: each for each in modelled(captured, device).operators}
    counts = {
        name: {way.name: round(way.time_us / product) for way in found[name].implementations}
        for name in ("linear_cross_entropy", "linear_cross_entropy_backward")
    }
    assert counts["linear_cross_entropy"] == {
        "default": 1,
        "in 4 chunks": 1,
        "in 16 chunks": 1,
        "with gradients in 4 chunks": 3,
        "with gradients in 16 chunks": 3,
    }
    assert counts["linear_cross_entropy_backward"] == {
        "default": 2,
        "in 4 chunks": 3,
        "in 16 chunks": 3,
        "with gradients in 4 chunks": 0,
        "with gradients in 16 chunks": 0,
    }


def test_allocations_are_counted() -> None:
    def run() -> torch.Tensor:
        first = torch.zeros(1000)
        second = torch.zeros(500)
        del first
        return second

    found = allocations_of(run, CPU)
    assert (found.peak_bytes, found.kept_bytes) == (6000, 2000)
    aligned = allocations_of(run, CPU, aligned=True)
    assert (aligned.peak_bytes, aligned.kept_bytes) == (6080, 2048)


def test_measured_positions_are_inside_of_the_input() -> None:
    """Zeros were positions in the padding: the kernel of the backward pass wrote before its result,
    and the process died later, in another operator."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    captured = with_implementations(capture(model, (torch.randn(2, 3, 16, 16),)))
    assert [captured.graph.storages[each].name for each in captured.fills] == [
        "max_pool2d_with_indices positions"
    ]
    assert list(captured.fills.values()) == [1 * 3 + 1]
    measured_graph(captured, CPU)


class Reducing(nn.Module):
    """A layer whose scale is a sum over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * all_reduce(x.sum(0), "sum", dist.group.WORLD)


class Runs(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(str(func))
        return func(*args, **(kwargs or {}))


def test_operators_between_ranks_are_not_run() -> None:
    """Each rank ran them as often as its time allowed, and not at all where its cache had the cost:
    those of later steps met the ones left over, and summed other tensors."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model, sample = Reducing(), torch.randn(3, 4)
        captured = capture_step(model, sample, StepConditions(), Exactness.LOSSY)
        with Runs() as runs:
            profile = profile_step(model, captured, StepConditions(), sample=sample_of(sample))
    finally:
        dist.destroy_process_group()
    assert default(profile.graph, "all_reduce").time_us == 0
    assert default(profile.graph, "addmm").time_us > 0
    assert "aten.addmm.default" in runs.operators
    assert not any("c10d" in name for name in runs.operators)
    assert profile.provenance["eager"] == "it exchanges tensors with other ranks"


class Eighths(nn.Module):
    """Numbers that are rounded to 8 bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float8_e4m3fn).to(x.dtype)


def test_operators_of_floats_of_8_bits_are_measured() -> None:
    """A fit ended in torch's error that it has no random numbers of the type."""
    captured = capture(nn.Sequential(nn.Linear(4, 4), Eighths()), (torch.randn(4, 4),))
    graph = measured_graph(captured, CPU, single_runs=True)
    assert sum(operator.name.startswith("_to_copy") for operator in graph.operators) > 1
