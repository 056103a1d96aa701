"""Activations in bfloat16: gradients near eager's, in the memory that is predicted."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from headrace._native import ScheduleSearch
from headrace.errors import InputError
from headrace.memory import fit
from headrace.memory.exactness import Exactness, allowed_exactness
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.arguments import WithLoss
from headrace.memory.measure.capture import capture
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.timing import Roofline, measured_graph, modelled
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.run.step import scheduled_step
from headrace.memory.schedule import Schedule, Step, plain_schedule
from tests.memory.models import CASES, SquareLoss
from tests.memory.simulate import simulate_step
from tests.memory.training import state_of
from tests.waiting import ENDLESS_S

CPU = torch.device("cpu")


def half_schedule(graph: Any) -> Schedule:
    """Return a plain run that stores all that it can in bfloat16."""
    steps: list[Step] = []
    for index, operator in enumerate(graph.operators):
        names = [each.name for each in operator.implementations]
        wanted = "with bf16" if index < graph.forward_count else "from bf16"
        steps.append(Step(index, names.index(wanted) if wanted in names else 0))
    schedule = Schedule(steps=tuple(steps), forward_steps=graph.forward_count)
    verify(graph, schedule)
    return schedule


def gradients(run: Any, model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(3)
    out = run()
    out.float().square().mean().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("case", ["convolutional", "residual", "transformer"])
def test_gradients_are_near_eagers(case: str) -> None:
    torch.manual_seed(7)
    model, inputs = CASES[case]()
    eager = deepcopy(model)
    captured = with_implementations(capture(model, inputs), Exactness.LOSSY)
    chosen = half_schedule(captured.graph)
    assert any(
        captured.graph.operators[each.operator].implementations[each.implementation].name
        == "from bf16"
        for each in chosen.steps
    )
    step = scheduled_step(captured, chosen)
    found = gradients(partial(step, *state_of(model), *inputs), model)
    expected = gradients(partial(eager, *inputs), eager)
    pairs = list(zip(found, expected, strict=True))
    assert any(not torch.equal(one, other) for one, other in pairs)
    whole = sum(float(other.square().sum()) for _, other in pairs)
    error = sum(float((one - other).square().sum()) for one, other in pairs)
    assert (error / whole) ** 0.5 < 0.02


def test_the_measured_peak_is_the_simulated_one() -> None:
    torch.manual_seed(7)
    model, inputs = CASES["convolutional"]()
    model, inputs = WithLoss(model, SquareLoss()), (*inputs, torch.zeros(()))
    captured = with_implementations(capture(model, inputs), Exactness.LOSSY)
    graph = measured_graph(captured, CPU)
    schedule = half_schedule(graph)
    step = scheduled_step(captured, schedule)

    def train() -> None:
        step(*state_of(model), *inputs).backward()

    train()
    model.zero_grad()
    found = allocations_of(train, CPU).peak_bytes
    predicted = simulate_step(graph, schedule).peak_bytes - graph.resident_bytes
    assert 0.97 * predicted - 2048 <= found <= predicted


def test_plans_store_bf16_where_products_are_slow() -> None:
    layers = [each for _ in range(5) for each in (nn.Linear(64, 64), nn.GELU())]
    model, x = nn.Sequential(*layers), torch.randn(2048, 64)
    captured = with_implementations(capture(model, (x,)), Exactness.LOSSY)
    slow = Roofline(name="slow products", flops_per_s=1e9, bytes_per_s=1e12, launch_us=1.0)
    graph = modelled(captured, slow)
    peak = simulate_step(graph, plain_schedule(graph)).peak_bytes
    least = simulate_step(graph, half_schedule(graph)).peak_bytes
    assert least < 0.7 * peak
    limits = SolveLimits(seconds=ENDLESS_S, bound_seconds=0.0, rounds=5, interval_work=0.0)
    found = solve_schedule(graph, least, ScheduleSearch, limits=limits)
    names = [
        graph.operators[step.operator].implementations[step.implementation].name
        for step in found.schedule.steps
    ]
    assert names.count("from bf16") >= 4
    assert found.time_us < 1.1 * simulate_step(graph, plain_schedule(graph)).time_us


def test_a_step_is_fitted_with_bf16() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(256, 64)
    fitted = fit(model, x, "1MiB", lossy=True, cache=False)
    graph = fitted.plans[0].profile.graph
    assert any(way.name == "from bf16" for each in graph.operators for way in each.implementations)
    fitted(x).square().mean().backward()


def test_names_of_calls_are_the_same_in_every_process() -> None:
    model, inputs = CASES["transformer"]()
    found = with_implementations(capture(model, inputs), Exactness.LOSSY).calls.values()
    names = [str(each.target) for each in found if not hasattr(each.target, "__qualname__")]
    assert any(name.startswith("from bf16 ") for name in names)
    assert not any(" at 0x" in name for name in names)


def test_exact_and_lossy_exclude_each_other() -> None:
    with pytest.raises(InputError, match="exclude each other"):
        fit(nn.Linear(2, 2), torch.randn(1, 2), "1GiB", exact=True, lossy=True)
    assert allowed_exactness(exact=False, lossy=True) is Exactness.LOSSY
