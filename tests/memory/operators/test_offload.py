"""Activations in the host's memory; without a GPU the CPU stands in for the device."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from headrace._native import ScheduleSearch
from headrace.memory import CaptureError, fit
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.arguments import WithLoss
from headrace.memory.measure.capture import capture
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.timing import Roofline, measured_graph, modelled
from headrace.memory.operators import copies
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.run.step import scheduled_step
from headrace.memory.schedule import Schedule, Step, plain_schedule
from tests.memory.models import CASES, SquareLoss
from tests.memory.simulate import simulate_step
from tests.memory.training import assert_trains_alike, state_of
from tests.waiting import ENDLESS_S

CPU = torch.device("cpu")
DEVICE = Roofline(
    name="slow products", flops_per_s=1e9, bytes_per_s=1e12, launch_us=1.0, host_bytes_per_s=1e10
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small activations be copied, too."""
    monkeypatch.setattr(copies, "LEAST_OFFLOADED", 0)


def offloaded(graph: Graph) -> Schedule:
    """Return a plain run that stores all that it can in the host's memory."""
    steps: list[Step] = []
    for index, operator in enumerate(graph.operators):
        names = [each.name for each in operator.implementations]
        wanted = "with host" if index < graph.forward_count else "from host"
        steps.append(Step(index, names.index(wanted) if wanted in names else 0))
    schedule = Schedule(steps=tuple(steps), forward_steps=graph.forward_count)
    verify(graph, schedule)
    return schedule


def captured_case(
    case: str, *, loss: bool = False
) -> tuple[Any, tuple[torch.Tensor, ...], Capture]:
    torch.manual_seed(7)
    model, inputs = CASES[case]()
    if loss:
        model, inputs = WithLoss(model, SquareLoss()), (*inputs, torch.zeros(()))
    captured = with_implementations(capture(model, inputs), Exactness.EXACT, offload=True)
    return model, inputs, captured


@pytest.mark.parametrize("case", ["convolutional", "residual", "transformer"])
def test_steps_equal_eager_ones(case: str) -> None:
    model, inputs, captured = captured_case(case)
    schedule = offloaded(captured.graph)
    assert captured.hosted
    step, eager = scheduled_step(captured, schedule), deepcopy(model)
    run, eager_run = partial(step, *state_of(model), *inputs), partial(eager, *inputs)
    assert_trains_alike(run, model, eager_run, eager, steps=2)


def test_the_measured_peak_is_the_simulated_one_beside_the_copies() -> None:
    model, inputs, captured = captured_case("convolutional", loss=True)
    graph = measured_graph(captured, CPU)
    schedule = offloaded(graph)
    assert all(graph.storages[each].nbytes == 0 for each in captured.hosted)
    step = scheduled_step(captured, schedule)

    def train() -> None:
        step(*state_of(model), *inputs).backward()

    train()
    model.zero_grad()
    found = allocations_of(train, CPU).peak_bytes
    on_device = tuple(
        replace(each, nbytes=captured.example(index).nbytes) if index in captured.hosted else each
        for index, each in enumerate(graph.storages)
    )
    whole = replace(graph, storages=on_device)  # the stand-in's copies are in its memory
    predicted = simulate_step(whole, schedule).peak_bytes - graph.resident_bytes
    assert 0.95 * predicted - 2048 <= found <= predicted + graph.resident["generators"]
    assert simulate_step(graph, schedule).peak_bytes < simulate_step(whole, schedule).peak_bytes


def test_plans_offload_where_products_are_slow() -> None:
    layers = [each for _ in range(5) for each in (nn.Linear(64, 64), nn.GELU())]
    model, x = nn.Sequential(*layers), torch.randn(2048, 64)
    captured = with_implementations(capture(model, (x,)), offload=True)
    graph = modelled(captured, DEVICE)
    plain = simulate_step(graph, plain_schedule(graph))
    limits = SolveLimits(seconds=ENDLESS_S, bound_seconds=0.0, rounds=5, interval_work=2.0)
    found = solve_schedule(graph, int(0.6 * plain.peak_bytes), ScheduleSearch, limits=limits)
    ways = [
        graph.operators[s.operator].implementations[s.implementation] for s in found.schedule.steps
    ]
    names = [way.name for way in ways]
    assert names.count("from host") >= 3
    assert found.time_us < 1.1 * plain.time_us
    # a copy takes the bytes of its activation, each way
    with_host, default = (
        next(way.time_us for way in graph.operators[0].implementations if way.name == name)
        for name in ("with host", "default")
    )
    assert with_host - default == pytest.approx(1e6 * 2048 * 64 * 4 / 1e10, rel=0.01)


def test_a_device_without_a_bandwidth_and_the_cpu_are_refused() -> None:
    _, _, captured = captured_case("perceptron")
    with pytest.raises(CaptureError, match="slow products states no bandwidth"):
        modelled(captured, replace(DEVICE, host_bytes_per_s=0.0))
    with pytest.raises(CaptureError, match="are in the host's memory already"):
        fit(nn.Linear(2, 2), torch.randn(1, 2), "1GiB", offload=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing to offload from")
def test_a_step_on_a_gpu_is_within_its_budget() -> None:
    layers = [each for _ in range(5) for each in (nn.Linear(512, 512), nn.GELU())]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(1 << 14, 512, device="cuda")
    eager = deepcopy(model)
    there = sum(each.nbytes for each in (*model.parameters(), x))
    found = allocations_of(lambda: eager(x).square().mean().backward(), x.device)
    eager.zero_grad()
    budget = there + int(0.6 * found.peak_bytes)
    fitted = fit(model, x, budget, loss=None, cache=False, offload=True)
    assert_trains_alike(lambda: fitted(x), model, lambda: eager(x), eager)
    model.zero_grad()
    found = allocations_of(lambda: fitted(x).square().mean().backward(), x.device)
    assert there + found.peak_bytes <= 1.05 * budget
