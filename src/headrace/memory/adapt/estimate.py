"""Memory of a model's training step by the model's name, before there are weights or a device."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral

import torch
from torch.optim import Optimizer

from headrace.errors import InputError
from headrace.facades import public_value
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph
from headrace.memory.measure.capture import capture
from headrace.memory.measure.fake_step import (
    BUFFERS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    PARAMETERS,
    EagerBytes,
    eager_bytes,
    on_cpu,
    on_fake_tensors,
)
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.named import NamedModel, named_model
from headrace.memory.measure.timing import modelled
from headrace.memory.plan.batches import BatchedGraph
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.largest import has_schedule, largest_of_convex, largest_that_fits
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from headrace.roofline import Roofline

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
_LIMITS = SolveLimits(seconds=5.0, bound_seconds=0.0, interval_work=0.0, gap=0.02)
"""Of the budget's cost: an estimate, not a plan to train by."""
_MOST_BATCH = 1 << 16
_SEARCH_S = 2.0
"""Of the search for any schedule of one batch size."""
_TOLERANCE = 0.05
"""Share by which the largest batch may be too low."""


@public_value("headrace.memory")
class BudgetEstimate:
    """Cost of a budget, with `headrace.memory.fit`, by a model of a device.

    Attributes
    ----------
    budget_bytes : of a whole training step, the optimizer's included.
    overhead : time beyond that of a step that computes nothing again, as a share of it; None: no
        schedule of this batch fits.
    least_bytes : where none fits, the least that one was found for; None: unknown.
    eager_batch : largest batch of the model as it is; 0: none fits.
    largest_batch : with `fit`, within 5%; 0: none fits. None: unknown, as the step's
        implementations differ between batch sizes.
    """

    budget_bytes: int
    overhead: float | None
    least_bytes: int | None
    eager_batch: int
    largest_batch: int | None


@public_value("headrace.memory")
class StepEstimate:
    """Memory of a model's training step, in bytes.

    Attributes
    ----------
    title : the name, its library and the model's class.
    batch : samples of a step.
    inputs : shape of each argument.
    parameter_count : numbers in the model's parameters.
    most_bytes : by kind ("parameters", "gradients", "optimizer", "buffers", "inputs",
        "activations"): the most at any time of a step. Not a sum: gradients come as activations go.
    bytes_at_peak : by kind, when most is allocated in all.
    in_optimizer : whether that is in the optimizer's step.
    budget : what the budget costs, if there is one.
    """

    title: str
    batch: int
    inputs: Mapping[str, tuple[int, ...]]
    parameter_count: int
    most_bytes: Mapping[str, int]
    bytes_at_peak: Mapping[str, int]
    in_optimizer: bool
    budget: BudgetEstimate | None = None

    @property
    def peak_bytes(self) -> int:
        """Most that is allocated at any time."""
        return sum(self.bytes_at_peak.values())


def estimate_step(
    name: str,
    *,
    batch: int,
    length: int | None,
    size: int | None,
    dtype: str,
    optimizer: str,
    budget_bytes: int | None,
    device: Roofline,
    report: Callable[[str], None],
) -> StepEstimate:
    """Return the memory of the training step of a model with a name; see `memory.estimate`.

    Parameters
    ----------
    report : called with what is done.
    """
    for option, number in (("batch", batch), ("length", length), ("size", size)):
        if number is not None and not (isinstance(number, Integral) and 1 <= number <= 1 << 24):
            raise InputError(f"{option} is {number!r}, needs a whole number from 1 to {1 << 24}")
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}, needs one of {', '.join(DTYPES)}")
    optimizer_class = _optimizer(optimizer)
    report("making the model")
    named = named_model(name, length=length, size=size, dtype=DTYPES[dtype])
    arguments = named.arguments(batch)
    report("running a step without values")
    eager = eager_bytes(named.called, arguments, optimizer_class)
    tensors = [*enumerate(arguments[0]), *arguments[1].items()]
    return StepEstimate(
        title=named.title,
        batch=batch,
        inputs={str(argument): tuple(tensor.shape) for argument, tensor in tensors},
        parameter_count=sum(parameter.numel() for parameter in named.model.parameters()),
        most_bytes=eager.most,
        bytes_at_peak=eager.at_peak,
        in_optimizer=eager.in_optimizer,
        budget=None
        if budget_bytes is None
        else _budget(named, batch, eager, budget_bytes, device, report),
    )


def _optimizer(name: str) -> type[Optimizer] | None:
    """Return the optimizer of torch with a name, in any case; None: none."""
    lowered = str(name).lower()
    if lowered == "none":
        return None
    classes = {
        optimizer.__name__.lower(): optimizer
        for optimizer in vars(torch.optim).values()
        if isinstance(optimizer, type) and issubclass(optimizer, Optimizer)
    }
    if lowered not in classes or classes[lowered] in (Optimizer, torch.optim.LBFGS):
        raise InputError(
            f"optimizer is {name!r}, needs a class of torch.optim such as AdamW or SGD, or none"
        )
    return classes[lowered]


def _budget(
    named: NamedModel,
    batch: int,
    eager: EagerBytes,
    budget_bytes: int,
    device: Roofline,
    report: Callable[[str], None],
) -> BudgetEstimate:
    from headrace._native import ScheduleSearch

    state_bytes = eager.most[OPTIMIZER]
    # the optimizer's step needs the same whatever the batch is, and no schedule lowers it
    stepping_bytes = eager.stepping_bytes - eager.most.get(INPUTS, 0)

    def graph_at(samples: int) -> Graph:
        report(f"tracing a step of {samples}")
        try:
            return _graph(named, samples, state_bytes, device)
        except CaptureError as error:
            message = f"{error}; without a budget, its step is estimated as it is"
            raise CaptureError(message) from None

    large_batch = 2 * max(batch, 2)
    graph, larger = graph_at(batch), graph_at(large_batch)
    report("planning for the budget")
    overhead, least_bytes = _overhead(graph, budget_bytes, ScheduleSearch)
    if overhead is not None and stepping_bytes > budget_bytes:
        overhead, least_bytes = None, stepping_bytes
    report("finding the largest batch")
    affordable = stepping_bytes <= budget_bytes
    eager_batch = _eager_batch(named, batch, eager, budget_bytes) if affordable else 0
    steps = BatchedGraph(graph, batch, larger, large_batch)

    def fits(samples: int) -> bool:
        if samples > _MOST_BATCH:
            return False
        return has_schedule(steps.at(samples), budget_bytes, ScheduleSearch, seconds=_SEARCH_S)

    largest: int | None = None
    if not affordable:
        largest = 0
    elif steps.is_linear:
        largest = largest_that_fits(fits, guess=eager_batch, tolerance=_TOLERANCE)
    return BudgetEstimate(
        budget_bytes=budget_bytes,
        overhead=overhead,
        least_bytes=least_bytes,
        eager_batch=eager_batch,
        largest_batch=largest,
    )


def _eager_batch(named: NamedModel, batch: int, eager: EagerBytes, budget_bytes: int) -> int:
    """Return the largest batch of the model as it is; 0: none fits.

    Parameters
    ----------
    eager : of a step of `batch` samples.
    """
    fixed_bytes = sum(eager.most.get(kind, 0) for kind in (PARAMETERS, BUFFERS, OPTIMIZER))

    def peak_bytes(samples: int) -> int:
        if samples == batch:
            return eager.passes_bytes
        step = eager_bytes(named.called, named.arguments(samples), None)
        return step.passes_bytes + eager.most[OPTIMIZER]

    return largest_of_convex(
        peak_bytes,
        budget_bytes,
        none_bytes=fixed_bytes + eager.most.get(GRADIENTS, 0),
        guess=batch,
        most=_MOST_BATCH,
    )


def _graph(named: NamedModel, batch: int, state_bytes: int, device: Roofline) -> Graph:
    """Return the graph of a step with all implementations, on no device, timed by a roofline."""
    with on_fake_tensors(named.called):
        args, kwargs = on_cpu(named.arguments(batch))
        captured = with_implementations(capture(named.called, args, kwargs), Exactness.ROUNDED)
        graph = modelled(captured, device)
    return replace(graph, resident={**captured.graph.resident, OPTIMIZER: state_bytes})


def _overhead(
    graph: Graph, budget_bytes: int, engine: ScheduleEngine
) -> tuple[float | None, int | None]:
    """Return the share of time that a budget costs, or else the least budget that is found."""
    plain_us = verify(graph, plain_schedule(graph)).time_us
    try:
        solution = solve_schedule(graph, budget_bytes, engine, limits=_LIMITS)
    except BudgetError as error:
        return None, error.least_bytes
    return max(solution.time_us / plain_us - 1, 0.0), None
