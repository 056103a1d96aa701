"""Gradients of all ways to train in less memory beside eager's; some networks have dropout."""

from dataclasses import replace
from functools import partial

import torch

from benchmarks.harness import Report
from benchmarks.memory.fitted import PEAK_BARS, Budget, Fitted, LossModule, peak_figures
from benchmarks.memory.networks import GPT, MobileNetV2, ResNet50, VisionTransformer
from benchmarks.memory.networks.libraries import bert, llama
from benchmarks.memory.reference import OTHER, ROUNDED, WRONG, Reference
from benchmarks.memory.rivals import CHECKPOINTS, EAGER, Rival, compiled, stock
from benchmarks.memory.step import MIB, Allocations, Step, one_thread, step_allocations
from benchmarks.memory.workloads import Workload, pixels, text, token_loss
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph
from headrace.memory.measure.step import StepConditions
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule
from headrace.memory.schedule import Step as ScheduleStep

SECTION = "correct"
_TABLE = "gradients of one step"
_VOCABULARY, _TOKENS = 1000, 64
_SHARE = 0.5
_OWN = f"headrace, {_SHARE:g} of eager above gradients"
"""headrace's budget: the gradients, and this share of what eager needs beside them at its peak."""
_STEPS, _RATE, _LIBRARY_RATE = 200, 0.01, 0.003
"""With 0.01 the loss of Llama rises and falls, so that any rounding grows in later steps."""

CASES = (
    Workload(
        name="GPT, 4 layers, dropout 0.1",
        network=lambda: GPT(4, width=128, vocabulary=_VOCABULARY, dropout=0.1),
        sample=text(_TOKENS, _VOCABULARY),
        batch=2,
        loss=token_loss,
    ),
    Workload(
        name="MobileNet-V2, 64 px, dropout 0.2",
        network=lambda: MobileNetV2(10),
        sample=pixels(64, 64, classes=10),
        batch=4,
    ),
    Workload(
        name="ResNet-50, 64 px",
        network=lambda: ResNet50(10),
        sample=pixels(64, 64, classes=10),
        batch=4,
    ),
    Workload(
        name="ViT, 4 layers, 64 px",
        network=lambda: VisionTransformer(10, side=64, width=192, layers=4),
        sample=pixels(64, 64, classes=10),
        batch=16,  # with less, the workspace of its convolution alone is above the budget
    ),
)

_LIBRARY_CASES = (
    Workload(
        name="transformers' Llama, 2 layers",
        network=lambda: llama(_VOCABULARY, 2, 192),
        sample=text(2 * _TOKENS, _VOCABULARY),
        batch=4,
        loss=token_loss,
    ),
    Workload(
        name="transformers' BERT, 2 layers, dropout 0.1",
        network=lambda: bert(_VOCABULARY, 2, 192),
        sample=text(2 * _TOKENS, _VOCABULARY),
        batch=4,
        loss=token_loss,
    ),
)
"""Of a library: rivals that take a model apart are not for them."""

_FRACTIONS = (1.0, 0.9, 0.5, 0.1, 0.0)
_WITH_STATISTICS = Rival(
    name="memory budget 0.5, running statistics",
    prepare=partial(compiled, fraction=0.5, decomposed=False, statistics=True),
)


def bars() -> dict[str, str]:
    """Return bar name -> bound, of headrace's steps."""
    return {
        "gradients-wrong": "<= 0",
        "gradients-rounded-without-reason": "<= 0",
        "loss-in-200-steps-error": "<= 1e-6",
        **{f"correct-{name}": bound for name, bound in PEAK_BARS.items()},
    }


def measure(report: Report, *, quick: bool) -> None:
    """Judge the first step of every case under every rival."""
    with one_thread():
        words: list[tuple[str, bool]] = []
        errors: list[float] = []
        peaks: list[tuple[Fitted, Allocations]] = []
        for case in (CASES[0], _LIBRARY_CASES[0]) if quick else (*CASES, *_LIBRARY_CASES):
            reference = Reference.of(case)
            apart = () if case in _LIBRARY_CASES else CHECKPOINTS
            for rival in (*apart, *stock((0.5,) if quick else _FRACTIONS)):
                _row(report, case, reference, rival)
            if not quick:
                if reference.statistics:
                    _row(report, case, reference, _WITH_STATISTICS)
                _decomposed_rows(report, case, reference)
            fitted = _budget(case).fitted(case)
            word, memory = _own_row(report, case, reference, fitted)
            words.append((word, bool(fitted.reorders)))
            peaks.append((fitted, memory))
            errors.append(_loss_error(case, fitted.step))
            _lossy_row(report, case, reference)
    report.bar("gradients-wrong", sum(word in (WRONG, OTHER) for word, _ in words))
    unexplained = sum(word == ROUNDED and not reasons for word, reasons in words)
    report.bar("gradients-rounded-without-reason", unexplained)
    report.bar("loss-in-200-steps-error", max(errors))
    for name, figure in peak_figures(peaks).items():
        report.bar(f"correct-{name}", figure)


def _budget(case: Workload) -> Budget:
    step = EAGER.step(case)
    step.run()
    step.clear()
    found = step_allocations(step)
    beside = found.peak_bytes - found.kept_bytes
    return Budget(name=_OWN, above_bytes=int(found.kept_bytes + _SHARE * beside))


def _own_row(
    report: Report, case: Workload, reference: Reference, fitted: Fitted
) -> tuple[str, Allocations]:
    verdict = reference.judge(fitted.step)
    memory = step_allocations(fitted.step)
    report.row(
        _TABLE,
        case=case.name,
        rival=_OWN,
        kernels="eager's",
        beside=reference.name,
        loss_error=verdict.loss_error,
        gradient_error=verdict.gradient_error,
        rounding=reference.rounding,
        correct=verdict.word,
        statistics=verdict.statistics,
        reorders="; ".join(fitted.reorders),
        peak_mib=memory.peak_bytes / MIB,
        budget_mib=fitted.budget_bytes / MIB,
        predicted_mib=fitted.predicted_bytes / MIB,
    )
    return verdict.word, memory


def _lossy_row(report: Report, case: Workload, reference: Reference) -> None:
    """Add the errors of a step with all activations that can be in bfloat16; no bar is about it.

    A plan has as few of them as its budget needs.
    """
    model, inputs, targets = case.make()
    module = fitted_module(
        model,
        lambda captured: {0: _in_bfloat16(captured.graph)},
        conditions=StepConditions(loss=LossModule(case.loss)),
        exactness=Exactness.LOSSY,
    )
    step = Step(model=model, forward=module, inputs=inputs, targets=targets)
    verdict = reference.judge(step)
    report.row(
        "all activations in bfloat16",
        case=case.name,
        loss_error=verdict.loss_error,
        gradient_error=verdict.gradient_error,
        rounding=reference.rounding,
        loss_in_200_steps_error=_loss_error(case, step),
    )


def _in_bfloat16(graph: Graph) -> Schedule:
    """Return a plain run that stores all that it can in bfloat16."""
    wanted = ("with bf16", "from bf16")
    steps = [
        ScheduleStep(
            index, next((n for n, way in enumerate(each.implementations) if way.name in wanted), 0)
        )
        for index, each in enumerate(graph.operators)
    ]
    schedule = Schedule(steps=tuple(steps), forward_steps=graph.forward_count)
    verify(graph, schedule)
    return schedule


def _loss_error(case: Workload, step: Step) -> float:
    """Return the largest relative difference from eager's loss in `_STEPS` steps of training."""
    rate = _LIBRARY_RATE if case in _LIBRARY_CASES else _RATE
    pairs = zip(_losses(step, rate), _losses(EAGER.step(case), rate), strict=True)
    return max(abs(found - exact) / abs(exact) for found, exact in pairs)


def _losses(step: Step, rate: float) -> list[float]:
    """Train from the workload's first weights, and return the loss of each step."""
    optimizer = torch.optim.SGD(step.model.parameters(), lr=rate)
    losses: list[float] = []
    for at in range(_STEPS):
        losses.append(float(replace(step, seed=at).run()))
        optimizer.step()
        step.clear()
    return losses


def _decomposed_rows(report: Report, case: Workload, reference: Reference) -> None:
    """Compare the partitioner of decomposed kernels with itself where it drew other masks."""
    whole, *others = stock(_FRACTIONS, decomposed=True)
    if _row(report, case, reference, whole) == OTHER:
        reference = reference.by(whole, case)
    for rival in others:
        _row(report, case, reference, rival)


def _row(report: Report, case: Workload, reference: Reference, rival: Rival) -> str:
    """Add the row of a rival, and return its verdict."""
    try:
        verdict = reference.judge(rival.step(case))
    except RuntimeError as error:  # a rival's own
        report.row(_TABLE, case=case.name, rival=rival.name, correct=type(error).__name__)
        return WRONG
    report.row(
        _TABLE,
        case=case.name,
        rival=rival.name,
        kernels=rival.kernels,
        beside=reference.name,
        loss_error=verdict.loss_error,
        gradient_error=verdict.gradient_error,
        rounding=reference.rounding,
        correct=verdict.word,
        statistics=verdict.statistics,
    )
    if verdict.word == WRONG:
        report.note(
            f"{rival.name} ({rival.kernels}): wrong gradients of {case.name}, without a warning"
        )
    return verdict.word
