"""Random training programs: views, writes into slices, layouts, reductions and layers.

A program is a module of operators that are drawn from a seed. `measured` fits it into budgets
between the least and a plain run's, and returns how far its steps exceed them, and the errors of
its gradients. Tests and the benchmark of memory share it.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace._native import ScheduleSearch
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.errors import BudgetError
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.step import StepConditions, profile_step
from headrace.memory.measure.timing import Cost
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.schedule import Schedule, plain_schedule
from tests.memory.simulate import Simulator

CPU = torch.device("cpu")
LIMITS = SolveLimits(seconds=60.0, bound_seconds=0.0, interval_work=0.0, rounds=300, gap=0.05)
"""Of a search: any schedule within the budget will do."""
BUDGET_SHARES = (0.0, 0.3, 0.8)
"""Budgets of a program, from the least with a schedule (0) to a plain run's peak (1)."""
_SHAPE = (4, 8, 12, 12)
_MOST_ELEMENTS = 65_536
"""Of a tensor: no operator of a program makes a larger one."""

Operation = Callable[..., Tensor]


def _transposed(random: Random, x: Tensor) -> Operation:
    first, second = random.sample(range(x.dim()), 2)
    return lambda x: x.transpose(first, second)


def _permuted(random: Random, x: Tensor) -> Operation:
    order = random.sample(range(x.dim()), x.dim())
    is_copied = random.random() < 0.5
    return lambda x: x.permute(order).contiguous() if is_copied else x.permute(order)


def _reshaped(random: Random, x: Tensor) -> Operation:
    if x.dim() > 2:
        begin = random.randrange(x.dim() - 1)
        return lambda x: x.flatten(begin, begin + 1)
    size = x.shape[-1]
    return lambda x: x.unflatten(-1, (2, size // 2)) if size % 2 == 0 else x.unsqueeze(1)


def _sliced(random: Random, x: Tensor) -> Operation:
    dim, step = random.randrange(x.dim()), random.choice((1, 1, 2))
    begin = random.randrange((x.shape[dim] + 1) // 2)
    selection = (*(slice(None) for _ in range(dim)), slice(begin, None, step))
    return lambda x: x[selection] * 1.25


def _split(random: Random, x: Tensor) -> Operation:
    dim = random.randrange(x.dim())
    size = max(x.shape[dim] // 2, 1)

    def halves(x: Tensor) -> Tensor:
        first, *others = x.split(size, dim)
        return first + others[0].sigmoid() if others and others[0].shape == first.shape else first

    return halves


def _expanded(random: Random, x: Tensor) -> Operation:
    dim = random.randrange(x.dim())
    return lambda x: x.mean(dim, keepdim=True).expand_as(x) - x


def _repeated(random: Random, x: Tensor) -> Operation:
    count = random.choice((2, 3))
    return lambda x: x.unsqueeze(0).expand(count, *x.shape).flatten(0, 1)


def _stacked(random: Random, x: Tensor) -> Operation:
    dim = random.randrange(x.dim() + 1)
    return lambda x: torch.stack([x, x.tanh()], dim)


def _indexed(random: Random, x: Tensor) -> Operation:
    dim, count = random.randrange(x.dim()), random.choice((2, 5))
    size = x.shape[dim]
    if random.random() < 0.5:
        return lambda x: x.index_select(dim, (torch.arange(count) * 7) % size)
    selection = tuple(slice(None) for _ in range(dim))
    return lambda x: x[(*selection, (torch.arange(count) * 5) % size)]


def _gathered(random: Random, x: Tensor) -> Operation:
    dim = random.randrange(x.dim())
    return lambda x: x.gather(dim, x.detach().argsort(stable=True, dim=dim))


def _moved(random: Random, x: Tensor) -> Operation:
    dim = random.randrange(x.dim())
    return random.choice(
        (
            lambda x: x.roll(1, dim),
            lambda x: x.flip(dim),
            lambda x: functional.pad(x, (1, 2)),
            lambda x: x.cumsum(dim) * 0.5,
            lambda x: x.tril(),
            lambda x: x.masked_fill(x > 0.5, 0.25),
            lambda x: torch.where(x < 0, x * 0.5, x.square()),
        )
    )


def _reduced(random: Random, x: Tensor) -> Operation:
    dim, keeps = random.randrange(x.dim()), x.dim() < 3 or random.random() < 0.5
    reduce = random.choice(
        (torch.sum, torch.mean, torch.amax, torch.logsumexp, torch.var, torch.softmax)
    )
    if reduce is torch.softmax:
        return lambda x: torch.softmax(x, dim)
    if reduce is torch.var:
        return lambda x: torch.var(x, dim, correction=0, keepdim=keeps)
    return lambda x: reduce(x, dim, keepdim=keeps)


def _activated(random: Random, x: Tensor) -> Operation:
    functions: tuple[Operation, ...] = (
        functional.relu,
        functional.relu6,
        functional.gelu,
        functional.silu,
        functional.leaky_relu,
        functional.elu,
        functional.softplus,
        torch.tanh,
        torch.sigmoid,
        lambda x: x.clamp(min=-1),
        lambda x: functional.dropout(x, 0.3),
    )
    return random.choice(functions)


def _written(random: Random, x: Tensor) -> Operation:
    """Write slices of a copy in place."""
    dim = random.randrange(x.dim())
    size = x.shape[dim]
    half = max(size // 2, 1)

    def write(x: Tensor) -> Tensor:
        copied = x.clone()
        copied.narrow(dim, 0, half).mul_(0.5).add_(1.0)
        copied.narrow(dim, size - half, half).copy_(x.narrow(dim, 0, half).tanh())
        return copied

    def change(x: Tensor) -> Tensor:
        changed = x * 1.5
        changed.add_(x).clamp_(min=-1)
        return changed.mul_(0.5).relu_()

    return random.choice((write, change))


def _filled(random: Random, x: Tensor) -> Operation:
    """Write parts into a larger buffer, and read them there again."""
    dim, count = random.randrange(x.dim()), random.choice((2, 3, 4))
    size, is_transposed = x.shape[dim], random.random() < 0.5
    shape = [*x.shape]
    shape[dim] *= count

    def fill(x: Tensor) -> Tensor:
        buffer = torch.zeros(shape, dtype=x.dtype)
        buffer.narrow(dim, 0, size).copy_(x)
        for part in range(1, count):
            values = buffer.narrow(dim, (part - 1) * size, size).clone()
            values.add_(x).clamp_(min=-1)
            buffer.narrow(dim, part * size, size).copy_(values.mul_(0.5))
        written = buffer.narrow(dim, size, (count - 1) * size)
        return written.transpose(0, 1) if is_transposed else written

    return fill


def _multiplied(random: Random, x: Tensor) -> Operation:
    scale = x.shape[-1] ** -0.5
    return lambda x: (x @ x.transpose(-1, -2)) * scale


def _linear(random: Random, x: Tensor) -> Operation:
    return nn.Linear(x.shape[-1], random.choice((8, 12)), bias=random.random() < 0.7)


def _normalized(random: Random, x: Tensor) -> Operation:
    if x.dim() == 4 and random.random() < 0.6:
        groups = 2 if x.shape[1] % 2 == 0 else 1
        return random.choice(
            (
                lambda: nn.BatchNorm2d(x.shape[1]),
                lambda: nn.GroupNorm(groups, x.shape[1]),
                lambda: nn.InstanceNorm2d(x.shape[1]),
            )
        )()
    return random.choice((nn.LayerNorm, nn.RMSNorm))(x.shape[-1])


def _convolved(random: Random, x: Tensor) -> Operation:
    ins, outs = x.shape[1], random.choice((4, 8))
    kernel, stride = random.choice((1, 3)), random.choice((1, 1, 2))
    return nn.Conv2d(ins, outs, kernel, stride, padding=kernel // 2, bias=random.random() < 0.7)


def _pooled(random: Random, x: Tensor) -> Operation:
    return random.choice(
        (
            nn.MaxPool2d(3, 2, 1),
            nn.MaxPool2d(3, 1, 1),
            nn.AvgPool2d(3, 1, 1),
            nn.Upsample(scale_factor=2),
            nn.AdaptiveAvgPool2d(3),
        )
    )


OPERATORS: tuple[Callable[[Random, Tensor], Operation], ...] = (
    _transposed,
    _permuted,
    _reshaped,
    _sliced,
    _split,
    _expanded,
    _repeated,
    _stacked,
    _indexed,
    _gathered,
    _moved,
    _reduced,
    _activated,
    _activated,
    _written,
    _written,
    _filled,
    _filled,
    _multiplied,
    _linear,
    _linear,
    _normalized,
    _normalized,
)
"""Of one tensor with two dimensions or more."""
IMAGE_OPERATORS = (_convolved, _convolved, _pooled)
"""Of one tensor with four dimensions."""


def _combined(random: Random, x: Tensor, y: Tensor) -> Operation | None:
    """Return an operation on two tensors, if they fit."""
    fitting: list[Operation] = []
    if x.shape == y.shape:
        fitting += [torch.add, torch.mul, torch.maximum, lambda x, y: x.add(y).mul_(0.5)]
    if x.dim() == y.dim():
        differing = [dim for dim in range(x.dim()) if x.shape[dim] != y.shape[dim]]
        if len(differing) <= 1:
            dim = differing[0] if differing else random.randrange(x.dim())
            fitting.append(lambda x, y: torch.cat([x, y], dim))
    if x.shape[-1] == y.shape[-1] and y.dim() == 2:
        fitting.append(lambda x, y: x @ y.t() * 0.25)
    return random.choice(fitting) if fitting else None


class RandomProgram(nn.Module):
    """Random operators on earlier tensors, equal for equal seeds.

    Parameters
    ----------
    returns_loss : whether the result is a number, or else one or two of the tensors.
    """

    def __init__(self, seed: int, *, returns_loss: bool) -> None:
        super().__init__()
        self.seed = seed
        random = Random(seed)
        with torch.random.fork_rng([]), torch.no_grad():
            torch.manual_seed(seed)
            self.layers = nn.ModuleList([nn.Conv2d(_SHAPE[1], _SHAPE[1], 3, padding=1)])
            self.operations: list[tuple[Operation, tuple[int, ...]]] = [(self.layers[0], (0,))]
            tensors = [self.sample(), self.layers[0](self.sample())]
            for _ in range(random.randint(4, 12)):
                self._extend(random, tensors)
        last = len(tensors) - 1
        self.outputs = (last,) if returns_loss or random.random() < 0.6 else (last, last - 1)
        self.returns_loss = returns_loss

    def _extend(self, random: Random, tensors: list[Tensor]) -> None:
        """Draw an operation, and keep it if its result is neither too small nor too large."""
        position = random.randrange(max(1, len(tensors) - 3), len(tensors))
        x = tensors[position]
        operands, operation = (position,), None
        if random.random() < 0.25:
            operands = (position, random.randrange(1, len(tensors)))
            operation = _combined(random, x, tensors[operands[1]])
        if operation is None:
            is_image = x.dim() == 4 and min(x.shape[2:]) > 2
            drawn = OPERATORS + IMAGE_OPERATORS * (3 if is_image else 0)
            operands, operation = (position,), random.choice(drawn)(random, x)
        result = operation(*(tensors[operand] for operand in operands))
        if result.dim() < 2 or result.dim() > 5 or not 16 < result.numel() <= _MOST_ELEMENTS:
            return
        if not result.isfinite().all() or result.abs().max() > 100:
            return
        if isinstance(operation, nn.Module):
            self.layers.append(operation)
        self.operations.append((operation, operands))
        tensors.append(result)

    def sample(self) -> Tensor:
        """Return an input of the program."""
        return torch.randn(_SHAPE, generator=torch.Generator().manual_seed(self.seed))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the program."""
        tensors = [x]
        for operation, operands in self.operations:
            tensors.append(operation(*(tensors[operand] for operand in operands)))
        if self.returns_loss:
            return tensors[-1].square().mean() + tensors[-1].mean()
        outputs = tuple(tensors[position] for position in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def loss_of(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return a number of a program's outputs that no activation is kept for."""
    if isinstance(outputs, Tensor):
        return outputs.sum() if outputs.dim() else outputs
    first, second = outputs
    return first.sum() + second.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A program within one budget.

    Attributes
    ----------
    excess_bytes : of the measured peak over the budget; at most 0 if the budget holds.
    rounds : whether an implementation of its schedule changes the order of arithmetic.
    error : of its gradients against float64's: norm of the differences over the norm.
    eager_error : the larger of eager's and of eager's without oneDNN.
    is_equal : whether gradients are eager's, bit for bit.
    """

    seed: int
    budget_bytes: int
    excess_bytes: int
    rounds: bool
    error: float
    eager_error: float
    is_equal: bool

    @property
    def error_over_eager(self) -> float:
        """Error of gradients over eager's, which is counted as one rounding at least."""
        return self.error / max(self.eager_error, torch.finfo(torch.float32).eps)


def measured(
    seed: int, exactness: Exactness, costs: MutableMapping[str, Cost]
) -> Iterator[Measured]:
    """Fit a program into budgets of its own, run a step in each, and compare with eager's.

    Parameters
    ----------
    costs : of operators that were measured before; what is measured is added.
    """
    returns_loss = seed % 3 != 0
    program = RandomProgram(seed, returns_loss=returns_loss)
    x = program.sample()
    schedules: dict[int, Schedule] = {}
    graphs: list[Graph] = []

    def plan(captured: Capture) -> dict[int, Schedule]:
        profile = profile_step(program, captured, StepConditions(), costs=costs, single_runs=True)
        graphs.append(profile.graph)
        schedules.update(_schedules(profile.graph))
        return schedules

    fitted = fitted_module(program, plan, exactness=exactness)
    fitted.prepare(x)
    eager = RandomProgram(seed, returns_loss=returns_loss)
    exact = gradients(eager, x)
    double = gradients(RandomProgram(seed, returns_loss=returns_loss).double(), x.double())
    with without_onednn():
        reordered = gradients(eager, x)
    eager_error = max(relative_error(exact, double), relative_error(reordered, double))
    # the step allocates the generators' states that it counts as resident
    beside_step = graphs[0].resident_bytes - graphs[0].resident["generators"]
    for budget, schedule in schedules.items():
        fitted.set_budget(budget)
        gradients(fitted, x)
        peak = step_peak(fitted, x)
        values = gradients(fitted, x)
        yield Measured(
            seed=seed,
            budget_bytes=budget,
            excess_bytes=beside_step + peak - budget,
            rounds=_rounds(graphs[0], schedule),
            error=relative_error(values, double),
            eager_error=eager_error,
            is_equal=all(map(torch.equal, values, exact)),
        )


@contextmanager
def without_onednn() -> Generator[None]:
    """Compute with torch's own kernels on the CPU, which add in another order."""
    enabled = torch.backends.mkldnn.enabled
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def step_peak(module: nn.Module, x: Tensor) -> int:
    """Return the most that a step allocates, its gradients among it."""
    for parameter in module.parameters():
        parameter.grad = None
    torch.manual_seed(1)
    return allocations_of(lambda: loss_of(module(x)).backward(), CPU).peak_bytes


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the gradients of a step; zeros for parameters without one.

    The outputs' gradients are dense, as captured steps compute with them: a sum outside of the step
    would give eager expanded ones, on which kernels of normalizations add in another order.
    """
    for parameter in module.parameters():
        parameter.grad = None
    torch.manual_seed(1)
    outputs = module(x)
    tensors = (outputs,) if isinstance(outputs, Tensor) else outputs
    torch.autograd.backward(tensors, [torch.ones_like(output) for output in tensors])
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for parameter in module.parameters()
    ]


def relative_error(values: list[Tensor], reference: list[Tensor]) -> float:
    """Return the norm of the differences over the norm of the reference."""
    pairs = zip(values, reference, strict=True)
    squares = sum(float((value.double() - exact).square().sum()) for value, exact in pairs)
    scale = sum(float(part.double().square().sum()) for part in reference)
    return (squares / scale) ** 0.5 if scale else squares**0.5


def _schedules(graph: Graph) -> dict[int, Schedule]:
    """Return a plain run, and schedules within budgets below its peak."""
    plain = plain_schedule(graph)
    most = Simulator(graph).run(plain).peak_bytes
    schedules = {most: plain}
    try:
        solve_schedule(graph, 1 + graph.resident_bytes, ScheduleSearch, limits=LIMITS)
        raise AssertionError("a step without memory of its own")
    except BudgetError as error:
        assert error.least_bytes is not None
        least = error.least_bytes
    for share in BUDGET_SHARES:
        budget = int(least + share * (most - least))
        try:
            schedules[budget] = solve_schedule(
                graph, budget, ScheduleSearch, limits=LIMITS
            ).schedule
        except BudgetError:
            continue
    return schedules


def _rounds(graph: Graph, schedule: Schedule) -> bool:
    return any(
        graph.operators[step.operator].implementations[step.implementation].reorders
        for step in schedule.steps
    )
