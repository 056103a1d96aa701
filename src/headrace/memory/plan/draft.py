"""Schedules that a search changes: implementations of the forward pass, and runs by stage."""

from dataclasses import dataclass

import numpy as np

from headrace.memory.plan.stages import Stages
from headrace.memory.schedule import Schedule, Step


@dataclass(slots=True, kw_only=True)
class Draft:
    """A schedule in stages.

    Attributes
    ----------
    forward, backward : implementation of each forward operator in the forward pass, and of each
        backward operator.
    again : by stage (the one at 0 stays empty) the forward operators that run again, with their
        implementations.
    """

    forward: list[int]
    backward: list[int]
    again: list[dict[int, int]]

    @classmethod
    def plain(cls, stages: Stages) -> "Draft":
        """Return the draft of a plain run."""
        return cls(
            forward=[0] * len(stages.forward),
            backward=[0] * stages.count,
            again=[{} for _ in range(stages.count + 1)],
        )

    @classmethod
    def of(cls, stages: Stages, schedule: Schedule) -> "Draft":
        """Return a schedule's draft, where its runs are in the order of stages.

        A schedule with a stage that runs an operator twice or out of order is changed: the last
        run stands for all.
        """
        draft, stage = cls.plain(stages), 1
        for index, step in enumerate(schedule.steps):
            if step.operator >= len(stages.forward):
                draft.backward[stage - 1] = step.implementation
                stage += 1
            elif index < schedule.forward_steps:
                draft.forward[step.operator] = step.implementation
            else:
                run = max(stage, min(stages.first_again, stages.count))
                draft.again[run][step.operator] = step.implementation
        return draft

    def way(self, stage: int, operator: int) -> int:
        """Return the implementation of a run, which there is."""
        if operator >= len(self.forward):
            return self.backward[operator - len(self.forward)]
        return self.forward[operator] if stage == 0 else self.again[stage][operator]

    def set_way(self, stage: int, operator: int, implementation: int) -> None:
        """Give a run an implementation; one behind the forward pass is added if there is none."""
        if operator >= len(self.forward):
            self.backward[operator - len(self.forward)] = implementation
        elif stage == 0:
            self.forward[operator] = implementation
        else:
            self.again[stage][operator] = implementation

    def steps(self) -> list[tuple[int, int, int]]:
        """Return (stage, operator, implementation) of each step."""
        steps = [
            (0, operator, implementation) for operator, implementation in enumerate(self.forward)
        ]
        count = len(self.forward)
        for stage, implementation in enumerate(self.backward, 1):
            if runs := self.again[stage]:
                steps += [(stage, operator, runs[operator]) for operator in sorted(runs)]
            steps.append((stage, count + stage - 1, implementation))
        return steps

    def schedule(self) -> Schedule:
        """Return the schedule."""
        steps = tuple(
            Step(operator, implementation) for _, operator, implementation in self.steps()
        )
        return Schedule(steps=steps, forward_steps=len(self.forward))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedDraft:
    """A draft and its simulation within a budget.

    Attributes
    ----------
    steps : (steps, 3) int32, stage, operator and implementation of each.
    time_us : of all steps.
    excess : bytes above the budget, summed over the steps.
    bytes : (steps,) int64, allocated while each step runs, with what is resident.
    storage, first, last : (instances,) int32: a storage, the step that creates it, and the last
        step at which it is live.
    """

    draft: Draft
    steps: np.ndarray
    time_us: float
    excess: int
    bytes: np.ndarray
    storage: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def peak_bytes(self) -> int:
        """Most that is allocated at any step."""
        return int(self.bytes.max(initial=0))

    @property
    def peak_step(self) -> int:
        """First step with the most."""
        return int(self.bytes.argmax())

    def storages_at(self, step: int) -> list[int]:
        """Return the storages that are live while a step runs, once for each instance."""
        return sorted(self.storage[(self.first <= step) & (step <= self.last)].tolist())
