"""Errors of fitted gradients against float64, beside eager's by several orders of sums."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Report
from benchmarks.memory.fitted import LossModule
from benchmarks.memory.networks import GPT, MobileNetV2, SqueezeNet, VisionTransformer
from benchmarks.memory.reference import double_gradients
from benchmarks.memory.step import Step, gradients, one_thread, relative_error
from benchmarks.memory.workloads import Workload, pixels, text, token_loss
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.step import StepConditions
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule
from headrace.memory.schedule import Step as ScheduleStep
from tests.memory.programs import without_onednn

SECTION = "precision"
_MOST = 4.0
_VOCABULARY, _TOKENS, _CLASSES = 1000, 64, 1000
_PARTS = (2, 4, 8)
"""Parts of the batch whose gradients are summed, as an order of eager's sums."""

SQUEEZENET = Workload(
    name="SqueezeNet 1.1, 96 px",
    network=SqueezeNet,
    sample=pixels(96, 96, classes=_CLASSES),
    batch=16,
)
NETWORKS = (
    SQUEEZENET,
    Workload(
        name="GPT, 2 layers",
        network=lambda: GPT(2, width=128, vocabulary=_VOCABULARY),
        sample=text(_TOKENS, _VOCABULARY),
        batch=8,
        loss=token_loss,
    ),
    Workload(
        name="MobileNet-V2, 64 px",
        network=lambda: MobileNetV2(10),
        sample=pixels(64, 64, classes=10),
        batch=8,
    ),
    Workload(
        name="ViT, 2 layers, 64 px",
        network=lambda: VisionTransformer(10, side=64, width=192, layers=2),
        sample=pixels(64, 64, classes=10),
        batch=16,
    ),
)
_STATISTICS = ("MobileNet-V2, 64 px",)
"""Networks whose samples depend on each other by batch norms: a batch in parts is another step."""


def bars() -> dict[str, str]:
    """Return the bar."""
    return {"gradient-error-over-eager": f"<= {_MOST:g}"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure each kind of implementation that rounds, in all operators that have it."""
    ratios: list[float] = []
    with one_thread():
        for workload in NETWORKS[:2] if quick else NETWORKS:
            ratios += _ratios(report, workload)
    report.bar("gradient-error-over-eager", max(ratios))


def _ratios(report: Report, workload: Workload) -> list[float]:
    exact = double_gradients(workload)
    errors = {name: relative_error(found, exact) for name, found in _orders(workload).items()}
    most = max(errors.values())
    for name, error in errors.items():
        report.row("gradients against float64", network=workload.name, step=name, error=error)
    ratios: list[float] = []
    for name, step in _fitted(workload):
        error = relative_error(gradients(step), exact)
        ratios.append(error / most)
        report.row(
            "gradients against float64",
            network=workload.name,
            step=name,
            error=error,
            over_eager=error / most,
        )
    return ratios


def _orders(workload: Workload) -> dict[str, dict[str, Tensor]]:
    """Return eager's gradients by several orders of sums."""

    def eager(parts: int = 1) -> dict[str, Tensor]:
        model, inputs, targets = workload.make()

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            losses = [
                workload.loss(model(part), part_targets)
                for part, part_targets in zip(
                    inputs.chunk(parts), targets.chunk(parts), strict=True
                )
            ]
            return torch.stack(losses).mean()

        return gradients(Step(model=model, forward=forward, inputs=inputs, targets=targets))

    orders = {"eager": eager()}
    with without_onednn():
        orders["eager without oneDNN"] = eager()
    if workload.name not in _STATISTICS:
        orders |= {f"eager in {parts} parts of the batch": eager(parts) for parts in _PARTS}
    return orders


def _fitted(workload: Workload) -> Iterator[tuple[str, Step]]:
    """Yield a step for each name of implementations that round, by all of that name."""
    model, inputs, targets = workload.make()
    names: list[str] = []

    def plan(captured: Capture) -> dict[int, Schedule]:
        graph = captured.graph
        names.extend(_rounding(graph))
        return {budget: _by(graph, name) for budget, name in enumerate(names, 1)}

    loss = LossModule(workload.loss)
    module = fitted_module(
        model, plan, conditions=StepConditions(loss=loss), exactness=Exactness.ROUNDED
    )
    module.prepare(inputs, targets)
    for budget, name in enumerate(names, 1):
        module.set_budget(budget)
        yield name, Step(model=model, forward=module, inputs=inputs, targets=targets)


def _rounding(graph: Graph) -> list[str]:
    """Return the names of implementations that round, without those that read what they store."""
    names = {
        implementation.name
        for operator in graph.operators
        for implementation in operator.implementations
        if implementation.reorders
    }
    return sorted(names - {name.replace("with ", "from ") for name in names if "with " in name})


def _by(graph: Graph, name: str) -> Schedule:
    """Return a plain run, by the implementations of a name and those that read what they store."""
    names = (name, name.replace("with ", "from "))
    steps: list[ScheduleStep] = []
    for index, operator in enumerate(graph.operators):
        ways = [way.name for way in operator.implementations]
        number = next((ways.index(chosen) for chosen in names if chosen in ways), 0)
        steps.append(ScheduleStep(index, number))
    schedule = Schedule(steps=tuple(steps), forward_steps=graph.forward_count)
    verify(graph, schedule)
    return schedule
