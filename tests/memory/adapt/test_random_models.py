"""Random networks, fitted into random budgets: within them, with eager's gradients and effects."""

import copy
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.memory import BudgetError, fit
from headrace.memory.measure import timing
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.plan import make
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solution import SolveLimits

CPU = torch.device("cpu")
CHANNELS, WIDTH, CLASSES = 8, 16, 50
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Tanh, nn.ELU)
LOSS = nn.CrossEntropyLoss()


class Network(nn.Module):
    """Random operators on earlier results, some of which nothing reads."""

    def __init__(self, random: Random, *, convolutional: bool) -> None:
        super().__init__()
        self.convolutional = convolutional
        kinds = ["weights", "weights", "norm", "activation", "in place", "dropout", "add", "scale"]
        kinds += ["concatenation", "layout", "pool" if convolutional else "attention"]
        self.layers, self.reads = nn.ModuleList(), list[tuple[str, int, int]]()
        for made in range(1, random.randint(6, 13)):
            kind = random.choice(kinds)
            self.reads.append(
                (kind, random.randrange(max(0, made - 3), made), random.randrange(made))
            )
            self.layers.append(self._layer(random, kind))
        self.head = nn.Linear(CHANNELS if convolutional else WIDTH, CLASSES)

    def _layer(self, random: Random, kind: str) -> nn.Module:
        c = self.convolutional
        norms = (
            (nn.BatchNorm2d(CHANNELS), nn.GroupNorm(2, CHANNELS))
            if c
            else (nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH, bias=False))
        )
        made = {
            "weights": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
            if c
            else nn.Linear(WIDTH, WIDTH),
            "norm": random.choice(norms),
            "activation": random.choice(ACTIVATIONS)(),
            "in place": nn.ReLU(inplace=True),
            "dropout": nn.Dropout(0.3),
            "pool": nn.MaxPool2d(3, 1, 1),
            "concatenation": nn.Conv2d(2 * CHANNELS, CHANNELS, 1)
            if c
            else nn.Linear(2 * WIDTH, WIDTH),
        }
        return made.get(kind, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        made = [x * 1.0]
        for (kind, first, second), layer in zip(self.reads, self.layers, strict=True):
            a, b = made[first], made[second]
            if kind == "add":
                made.append(a + b)
            elif kind == "scale":
                made.append(a / (1 + b.abs().mean()))
            elif kind == "layout":
                made.append(a.transpose(-1, -2).contiguous().transpose(-1, -2) * b.sigmoid())
            elif kind == "concatenation":
                made.append(layer(torch.cat([a, b], 1 if self.convolutional else -1)))
            elif kind == "attention":
                heads = [each.unflatten(-1, (2, -1)).transpose(1, 2) for each in (a, b, a)]
                made.append(
                    functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
                )
            else:
                made.append(layer(a * 1.5 if kind == "in place" else a))
        out = made[-1] + sum(each.mean() for each in made[-3:])
        return self.head(out.mean((2, 3)) if self.convolutional else out.flatten(0, 1))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure and plan for moments alone: any plan will do."""
    monkeypatch.setattr(timing, "MEASURED_S", 0.0)
    limits = SolveLimits(seconds=120.0, bound_seconds=0.0, interval_work=0.2, rounds=1000)
    monkeypatch.setitem(make.LIMITS, SolveEffort.QUICK, limits)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(10))
def test_random_networks_are_eagers_within_the_budget(seed: int) -> None:
    random = Random(seed)
    torch.manual_seed(seed)
    convolutional, accumulates, exact = seed % 2 == 0, seed % 3 == 0, seed % 4 < 2
    model = Network(random, convolutional=convolutional)
    x = torch.randn(4, CHANNELS, 24, 24) if convolutional else torch.randn(4, 32, WIDTH)
    y = torch.randint(CLASSES, (4 if convolutional else 128,))
    eager = copy.deepcopy(model)
    there = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), x, y))
    if accumulates:
        there += sum(-(-each.nbytes // 64) * 64 for each in model.parameters())
    trial = copy.deepcopy(model)
    plain = allocations_of(lambda: LOSS(trial(x), y).backward(), CPU).peak_bytes
    budget = there + int(random.uniform(0.35, 0.9) * plain)
    torch.manual_seed(7)

    def fitted(within: int) -> nn.Module:
        return fit(
            model,
            (x, y),
            within,
            loss=LOSS,
            exact=exact,
            accumulates=accumulates,
            effort="quick",
            cache=False,
        )

    try:
        step = fitted(budget)
    except BudgetError as error:
        assert error.least_bytes is not None
        budget = error.least_bytes
        step = fitted(budget)
    if accumulates:
        for each in (*model.parameters(), *eager.parameters()):
            each.grad = torch.zeros_like(each)
    torch.manual_seed(7)
    found = allocations_of(lambda: step(x, y).backward(), CPU)
    after = torch.get_rng_state()
    torch.manual_seed(7)
    LOSS(eager(x), y).backward()
    assert torch.equal(after, torch.get_rng_state())
    assert there + found.peak_bytes <= budget
    (plan,) = step.plans
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad
        elif reorders(plan):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)
        else:
            assert torch.equal(one.grad, other.grad)
    for one, other in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def reorders(plan: MemoryPlan) -> bool:
    """Return whether an implementation of the plan changes the order of arithmetic."""
    operators = plan.profile.graph.operators
    return any(
        operators[step.operator].implementations[step.implementation].reorders
        for step in plan.schedule.steps
    )
