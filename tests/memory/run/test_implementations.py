"""Steps by any choice of implementations equal eager ones, in the memory that is predicted."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from headrace.memory.errors import ScheduleError
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.arguments import WithLoss
from headrace.memory.measure.capture import capture
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.timing import Roofline, measured_graph, modelled
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.run.step import scheduled_step
from headrace.memory.schedule import Schedule, plain_schedule
from tests.memory.graphs import random_schedule
from tests.memory.models import CASES, SquareLoss, TiedTransformer
from tests.memory.simulate import simulate_step
from tests.memory.training import assert_trains_alike, state_of

CPU = torch.device("cpu")


def varied(graph: Graph, schedule: Schedule, random: Random) -> Schedule:
    """Return the schedule by other implementations: every change that leaves it valid."""
    steps = list(schedule.steps)
    places = sorted(range(len(steps)), key=lambda i: (i >= schedule.forward_steps, random.random()))
    for place in places:
        ways = len(graph.operators[steps[place].operator].implementations)
        for way in random.sample(range(ways), ways):
            before = steps[place]
            steps[place] = replace(before, implementation=way)
            try:
                verify(graph, replace(schedule, steps=tuple(steps)))
                break
            except ScheduleError:
                steps[place] = before
    return replace(schedule, steps=tuple(steps))


def captured_case(case: str) -> tuple[Any, tuple[torch.Tensor, ...], Any]:
    torch.manual_seed(7)
    model, inputs = CASES[case]()
    return model, inputs, with_implementations(capture(model, inputs))


def names(captured: Any, operator: str) -> list[str]:
    (found,) = (each for each in captured.graph.operators if each.name == operator)
    return [each.name for each in found.implementations]


def test_what_there_is() -> None:
    _, _, captured = captured_case("convolutional")
    relu = {"default", "in place", "with signs", "in place with signs"}
    assert set(names(captured, "relu")) == relu
    assert "with bytes" in names(captured, "max_pool2d_with_indices")
    assert "from bytes" in names(captured, "max_pool2d_with_indices_backward")
    # each backward operator runs once: what it is the last to read is overwritten
    ways = names(captured, "threshold_backward")
    assert set(ways) == {"in place", "from input in place", "from signs in place"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_steps_equal_eager_ones(case: str) -> None:
    model, inputs, captured = captured_case(case)
    graph = captured.graph
    bases = [plain_schedule(graph), keep_schedule(graph, ()), random_schedule(graph, Random(1), 12)]
    for seed, base in enumerate(bases):
        eager = deepcopy(model)
        schedule = varied(graph, base, Random(seed))
        step = scheduled_step(captured, schedule)
        run = partial(step, *state_of(model), *inputs)
        assert_trains_alike(run, model, partial(eager, *inputs), eager, steps=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["convolutional", "residual"])
def test_the_measured_peak_is_the_simulated_one(case: str) -> None:
    model, inputs, _ = captured_case(case)
    model, inputs = WithLoss(model, SquareLoss()), (*inputs, torch.zeros(()))
    captured = with_implementations(capture(model, inputs))
    graph = measured_graph(captured, CPU)
    for seed in range(4):
        base = [plain_schedule(graph), keep_schedule(graph, ())][seed % 2]
        schedule = varied(graph, base, Random(seed))
        step = scheduled_step(captured, schedule)

        def train(step: Any = step) -> None:
            step(*state_of(model), *inputs).backward()

        train()
        model.zero_grad()
        found = allocations_of(train, CPU).peak_bytes
        model.zero_grad()
        predicted = simulate_step(graph, schedule).peak_bytes - graph.resident_bytes
        states = graph.resident["generators"]
        assert 0.97 * predicted - 2048 <= found <= predicted + states, seed


def test_a_retained_graph_is_not_overwritten() -> None:
    """Its backward pass was refused by torch, with the advice of a setting by which a second one
    computed other gradients."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    captured = with_implementations(capture(model, (x,)))
    graph = captured.graph
    # the first product stays; its ReLU is recomputed over it
    steps = list(keep_schedule(graph, {graph.operators[0].implementations[0].creates[0]}).steps)
    place = max(i for i, step in enumerate(steps) if step.operator == 1)
    steps[place] = replace(steps[place], implementation=names(captured, "relu").index("in place"))
    schedule = Schedule(steps=tuple(steps), forward_steps=graph.forward_count)
    verify(graph, schedule)
    step = scheduled_step(captured, schedule)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(x).sum(), parameters)
    output = step(*state_of(model), x).sum()
    for is_retained in (True, True, False):
        gradients = torch.autograd.grad(output, parameters, retain_graph=is_retained)
        assert all(map(torch.equal, gradients, expected))


def test_a_roofline_covers_all_implementations() -> None:
    _, _, captured = captured_case("convolutional")
    device = Roofline(name="slow", flops_per_s=1e9, bytes_per_s=1e9, launch_us=1.0)
    for each in modelled(captured, device).operators:
        assert each.name == "loss" or all(way.time_us > 1 for way in each.implementations)


class Language(nn.Module):
    """A model of words with a head that shares the embedding's weight, and its loss."""

    def __init__(self, words: int = 400, width: int = 16) -> None:
        super().__init__()
        self.model = TiedTransformer(words, width)

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.model(words)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def language_case() -> tuple[Language, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(2)
    return Language(), torch.randint(400, (2, 4, 32)).unbind()  # pyright: ignore


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ways", [("in 4 chunks",) * 2, ("with gradients in 4 chunks",) * 2])
def test_a_loss_in_chunks_needs_the_memory_of_a_chunk(ways: tuple[str, str]) -> None:
    """The second way overwrites an intermediate of the forward pass in the backward pass."""
    model, inputs = language_case()
    captured = with_implementations(capture(model, inputs), Exactness.ROUNDED)
    graph = measured_graph(captured, CPU)
    schedule = plain_schedule(graph)
    peaks = [simulate_step(graph, schedule).peak_bytes]
    eager = deepcopy(model)
    torch.manual_seed(0)
    expected = eager(*inputs)
    expected.backward()
    steps = list(schedule.steps)
    losses = ("linear_cross_entropy", "linear_cross_entropy_backward")
    for operator, way in zip(losses, ways, strict=True):
        place = next(i for i, each in enumerate(graph.operators) if each.name == operator)
        steps[place] = replace(steps[place], implementation=names(captured, operator).index(way))
    schedule = replace(schedule, steps=tuple(steps))
    verify(graph, schedule)
    step = scheduled_step(captured, schedule)

    def train() -> torch.Tensor:
        torch.manual_seed(0)
        loss = step(*state_of(model), *inputs)
        loss.backward()
        return loss.detach()

    torch.testing.assert_close(train(), expected.detach())
    for found, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, other.grad, rtol=1e-4, atol=1e-6)
    model.zero_grad()
    measured_peak = allocations_of(train, CPU).peak_bytes
    peaks.append(simulate_step(graph, schedule).peak_bytes)
    logits = 4 * 32 * 400 * 4
    assert peaks[1] < peaks[0] - logits
    predicted = peaks[1] - graph.resident_bytes
    assert 0.97 * predicted - 2048 <= measured_peak <= predicted + graph.resident["generators"]


def test_the_input_of_a_convolution_is_free_after_the_gradient_of_its_weight() -> None:
    torch.manual_seed(1)
    wide, side = 16, 64
    layers = [nn.Conv2d(3, wide, 3), nn.Conv2d(wide, wide, 3), nn.Conv2d(wide, 1, 3)]
    model = WithLoss(nn.Sequential(*layers), SquareLoss())
    inputs = (torch.randn(4, 3, side, side), torch.zeros(()))
    captured = capture(model, inputs)
    graph = measured_graph(captured, CPU)
    schedule = plain_schedule(graph)
    (activation,) = graph.operators[0].implementations[0].creates
    readers = [each.name for each in graph.operators if activation in each.implementations[0].reads]
    assert readers == ["convolution_1", readers[1]]
    assert readers[1].startswith("convolution_backward")
    step = scheduled_step(captured, schedule)
    found = allocations_of(lambda: step(*state_of(model), *inputs).backward(), CPU).peak_bytes
    predicted = simulate_step(graph, schedule).peak_bytes - graph.resident_bytes
    assert 0.97 * predicted - 2048 <= found <= predicted
