"""Parts of 0-1 programs of a training step: the runs that they choose among, and rows.

Stages count up from 0, the forward pass (`headrace.memory.plan.stages`); the paper's count down.
Read k of the paper as the stage. An operator may create several storages; r_j where the paper asks
for a recomputed tensor is the sum of the implementations that create it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.memory.graph import Implementation
from headrace.memory.plan.stages import Stages
from headrace.memory.schedule import Schedule, Step
from headrace.solver import LinearModel

Terms = list[tuple[int, float]]
"""Variables with their factors."""
_HALF = 0.5


class Rows:
    """Rows of a linear model, collected one by one and added as one block."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []

    def add(
        self,
        terms: Iterable[tuple[int, float]],
        *,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> None:
        """Add ``lower <= sum(value * variable) <= upper``."""
        for column, value in terms:
            self._rows.append(len(self._lower))
            self._columns.append(column)
            self._values.append(value)
        self._lower.append(lower)
        self._upper.append(upper)

    def supply(self, terms: Terms, there: int | None, creating: int | None) -> None:
        """Add that the terms' sum is at most that of two variables, as far as there are such."""
        supplies = [(number, -1.0) for number in (there, creating) if number is not None]
        self.add([*terms, *supplies], upper=0.0)

    def put(self, model: LinearModel) -> None:
        """Add the rows to a model."""
        model.add_rows(
            np.array(self._rows, np.int64),
            np.array(self._columns, np.int64),
            np.array(self._values, float),
            lower=np.array(self._lower, float),
            upper=np.array(self._upper, float),
            count=len(self._lower),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that a program may choose: ``delta_{i,l}^k``, of a forward or backward operator."""

    stage: int
    operator: int
    implementation: int
    variant: Implementation


@dataclass(slots=True)
class Runs:
    """The variables delta of a program, by stage and operator.

    Attributes
    ----------
    variables : of the runs.
    """

    model: LinearModel
    stages: Stages
    variables: dict[Run, int] = field(default_factory=dict[Run, int])
    of: dict[tuple[int, int], list[tuple[Run, int]]] = field(
        default_factory=dict[tuple[int, int], list[tuple[Run, int]]]
    )
    making: dict[tuple[int, int], list[int]] = field(
        default_factory=dict[tuple[int, int], list[int]]
    )

    @classmethod
    def add(cls, model: LinearModel, stages: Stages) -> "Runs":
        """Add a binary for every run, with its time as cost (4.9)."""
        runs = cls(model, stages)
        listed: list[Run] = []
        for stage in range(stages.count + 1):
            able = [i for i in stages.forward if stage == 0 or stages.again(stage, i)]
            for operator in [*able, *([stages.backward(stage)] if stage else [])]:
                listed += [
                    Run(stage=stage, operator=operator, implementation=number, variant=variant)
                    for number, variant in enumerate(stages.ways(operator))
                    if runs._allowed(stage, operator, variant)
                ]
        numbers = model.add_binaries(
            len(listed), cost=np.array([run.variant.time_us for run in listed], float)
        )
        for run, number in zip(listed, numbers.tolist(), strict=True):
            runs.variables[run] = number
            runs.of.setdefault((run.stage, run.operator), []).append((run, number))
            for storage in run.variant.creates:
                runs.making.setdefault((run.stage, storage), []).append(number)
        return runs

    def _allowed(self, stage: int, operator: int, variant: Implementation) -> bool:
        """Return false for a run that overwrites what is kept or may be read afterwards."""
        stages, over = self.stages, variant.overwrites
        if over is None:
            return True
        if operator in stages.forward or over in stages.creator:
            return over in stages.creator
        return not (
            over in stages.kept or over in stages.graph.results or stages.is_read(over, stage + 1)
        )

    def of_operator(self, stage: int, operator: int) -> list[tuple[Run, int]]:
        """Return the runs of an operator in a stage, with their variables."""
        return self.of.get((stage, operator), [])

    def made(self, stage: int, storage: int) -> list[int]:
        """Return the variables of runs that create a storage in a stage (r_j^k)."""
        return self.making.get((stage, storage), [])

    def choose(self, rows: Rows) -> None:
        """Add the rows on how often operators run (the sums of delta in 4.2.2).

        One implementation of each forward operator in the forward pass and of each backward
        operator; of a recomputed one at most one (the sum is r_i^k).
        """
        for (stage, operator), runs in self.of.items():
            once = stage == 0 or operator not in self.stages.forward
            rows.add(((number, 1.0) for _, number in runs), lower=float(once), upper=1.0)

    def schedule(self, values: np.ndarray) -> Schedule:
        """Return the schedule of a solution."""
        runs = [run for run, number in self.variables.items() if values[number] > _HALF]
        runs.sort(key=lambda run: (run.stage, run.operator))
        first = [run.implementation for run in runs if run.stage == 0]
        reruns = [[Step(run.operator, run.implementation)] for run in runs if run.stage > 0]
        return self.stages.schedule(first, reruns)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """A program in 0-1 variables, and the meaning of its solutions."""

    model: LinearModel
    runs: Runs

    def schedule(self, values: np.ndarray) -> Schedule:
        """Return the schedule of a solution."""
        return self.runs.schedule(values)
