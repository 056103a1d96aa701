"""Models, samples and losses of the quality section; losses are kept in rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.attention.quality_rivals import Method, method_losses
from benchmarks.kept import KeptRows, settings_of
from headrace.attention.models import model_digest
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.loss import sample_losses

CHUNK = 20
"""Samples whose losses are a kept row; methods are compared on as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Consecutive parts of a text, [samples, tokens]: none is in two of them."""

    profile: Tensor
    plan: Tensor
    unseen: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, and what is measured with it.

    Attributes
    ----------
    name : "plain", "grown" or "smollm2".
    seed : of the training; 0 of SmolLM2.
    tokenizer : None: tokens are bytes.
    clusters : numbers of clusters of a layer that are compared; those in `barred` count.
    """

    name: str
    seed: int
    model: Any
    tokenizer: Any
    samples: Samples
    clusters: tuple[int, ...]
    barred: tuple[int, ...]

    @property
    def row(self) -> dict[str, Any]:
        """Columns that begin its rows."""
        return {"model": self.name, "seed": self.seed}


class Losses:
    """Losses of one model's samples, with plans and with other methods."""

    def __init__(self, rows: KeptRows, subject: Subject) -> None:
        self._rows = rows
        self._subject = subject
        self._digest = model_digest(subject.model)[:12]

    def of_plan(self, name: str, plan: AttentionPlan | None, samples: Tensor) -> list[float]:
        """Return the mean loss of a token of every sample; None: with the model's own cache."""
        return self.measured(
            f"{name} {plan_settings(plan)}",
            samples,
            lambda part: sample_losses(self._subject.model, plan, part, silent),
        )

    def of_method(self, name: str, method: Method, samples: Tensor) -> list[float]:
        """Return the losses of a method that is not the product's."""
        return self.measured(
            name, samples, lambda part: method_losses(self._subject.model, method, part)
        )

    def measured(
        self, name: str, samples: Tensor, measure: Callable[[Tensor], list[float]]
    ) -> list[float]:
        """Return a number of every sample: measured, or of the rows that an earlier run kept."""
        losses: list[float] = []
        for part in samples.split(CHUNK):
            key = f"{self._subject.name} {self._digest} {settings_of(part.tolist())} {name}"
            if key not in self._rows.rows:
                self._rows.add(key, {"measured": key, "losses": measure(part)})
            losses += self._rows.rows[key]["losses"]
        return losses


def plan_settings(plan: AttentionPlan | None) -> str:
    """Return a digest of what a plan stores."""
    return settings_of(plan and (plan.layers, plan.first_tokens))


def silent(text: str, share: float) -> None:
    """Report no progress: rows are printed as they are measured."""
