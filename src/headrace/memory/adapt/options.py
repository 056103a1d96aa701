"""Options of a fit as one value: the conditions of a step, and how it is captured and planned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.memory.exactness import Exactness
from headrace.memory.measure.step import StepConditions
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.solution import SolveProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options that `headrace.memory.fit` and `fit_blocks` share.

    Attributes
    ----------
    conditions : of the step, such as its loss and optimizer.
    exactness : of the implementations that steps may use.
    effort, seed, progress, watts : of the solver.
    captures : kinds of arguments that get a plan, whenever they come. None: those of the samples,
        and of one sample another kind, if it comes before a step has run by a plan.
    cache : whether measured costs and plans are read from the cache folder, and saved in it.
    """

    conditions: StepConditions
    exactness: Exactness
    effort: SolveEffort
    seed: int = 0
    captures: int | None = None
    cache: bool = True
    progress: Callable[[SolveProgress], None] | None = None
    watts: Mapping[str, float] | None = None

    def __deepcopy__(self, _copied: Mapping[int, Any]) -> Self:
        return self  # `progress` may be of an object that cannot be copied, such as a bar
