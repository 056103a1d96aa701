"""Gradients of eager, and the verdict on those of another way to compute the same step."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from benchmarks.memory.rivals import EAGER, Rival
from benchmarks.memory.step import Step, gradients, relative_error
from benchmarks.memory.workloads import Workload

ROUNDING_FACTOR = 10.0
"""Of eager's own error in float32: what other kernels in float32 may have."""

LOSS_TOLERANCE = 1e-5
"""Relative difference of losses above which a step computed something else: drew other masks."""

EQUAL, ROUNDED, WRONG, OTHER = "bit-equal", "to rounding", "WRONG", "other masks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A step's gradients beside eager's.

    Attributes
    ----------
    gradient_error : norm of the differences over the norm of eager's gradients.
    loss_error : relative.
    word : EQUAL, ROUNDED (at most `ROUNDING_FACTOR` times the error of eager in float32), WRONG, or
        OTHER: the losses differ, so that gradients do not compare.
    statistics : running statistics after the step: ``same`` as the reference's, ``differ`` or
        ``none``.
    """

    gradient_error: float
    loss_error: float
    word: str
    statistics: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Results of the first step of a workload on one batch, by a rival: eager as a rule.

    Attributes
    ----------
    name : of the rival.
    rounding : error of eager's gradients in float32 beside those in float64.
    """

    name: str
    gradients: dict[str, Tensor]
    loss: float
    statistics: dict[str, Tensor]
    rounding: float

    @classmethod
    def of(cls, workload: Workload, batch: int | None = None) -> Self:
        """Run eager's first step, in float32 and in float64."""
        found, loss, statistics = _first_run(EAGER.step(workload, batch))
        return cls(
            name=EAGER.name,
            gradients=found,
            loss=loss,
            statistics=statistics,
            rounding=relative_error(found, double_gradients(workload, batch)),
        )

    def by(self, rival: Rival, workload: Workload, batch: int | None = None) -> Self:
        """Return the reference that a rival makes, which draws other masks than eager."""
        found, loss, statistics = _first_run(rival.step(workload, batch))
        return replace(self, name=rival.name, gradients=found, loss=loss, statistics=statistics)

    def judge(self, step: Step) -> Verdict:
        """Compare the first run of a step; its network was not trained before."""
        found, loss, statistics = _first_run(step)
        error = relative_error(found, self.gradients)
        loss_error = abs(loss - self.loss) / abs(self.loss)
        if loss_error > LOSS_TOLERANCE:
            word = OTHER
        elif error == 0.0:
            word = EQUAL
        else:
            word = ROUNDED if error <= ROUNDING_FACTOR * self.rounding else WRONG
        return Verdict(
            gradient_error=error,
            loss_error=loss_error,
            word=word,
            statistics=self._compare(statistics),
        )

    def _compare(self, statistics: dict[str, Tensor]) -> str:
        if not statistics:
            return "none"
        same = all(
            torch.allclose(part.double(), self.statistics[name].double(), rtol=1e-4, atol=1e-6)
            for name, part in statistics.items()
        )
        return "same" if same else "differ"


def _first_run(step: Step) -> tuple[dict[str, Tensor], float, dict[str, Tensor]]:
    found: list[Tensor] = []

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = step.forward(inputs, targets)
        found.append(loss.detach())
        return loss

    made = gradients(replace(step, forward=forward))
    statistics = {name: part.clone() for name, part in step.model.named_buffers()}
    return made, float(found[0]), statistics


def double_gradients(workload: Workload, batch: int | None = None) -> dict[str, Tensor]:
    """Return the gradients of eager's first step in float64, by the parameters' names."""
    model, inputs, targets = workload.make(batch)
    model = model.double()
    step = Step(
        model=model,
        forward=lambda inputs, targets: workload.loss(model(inputs), targets),
        inputs=_double(inputs),
        targets=_double(targets),
    )
    return gradients(step)


def _double(data: Tensor) -> Tensor:
    return data.double() if data.is_floating_point() else data
