"""Schedules as retention intervals, for CP-SAT.

As in Moccasin (Bartan et al. 2023), an operator of the forward pass has its run there and at most a
few later ones, at a stage each. Each instance of a storage is an interval from its run to its last
read, and the memory is a resource that the intervals share (one cumulative constraint). So the
program has no variables by stage, and its size is that of the graph times the reruns allowed.

Time is in slots: stage t has slots ``t * span`` to ``t * span + span - 1``, one of each forward
operator, in order, and the last of its backward operator.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.memory.plan.draft import Draft, SimulatedDraft
from headrace.memory.plan.stages import Stages
from headrace.solver import Parameters, import_cp_model, solve_cpsat

_MOST_RERUNS = 3
"""Of one operator, unless the schedule to start from has more."""
_BYTE_LEVELS = 1 << 24
_NS_PER_US = 1000


def improved(
    stages: Stages, budget_bytes: int, start: SimulatedDraft, parameters: Parameters, spare: int = 1
) -> Draft | None:
    """Return the fastest schedule that CP-SAT finds from `start`; None if it finds none.

    Bytes are rounded up to a 2^24th of the budget, so that what fits there fits.

    Parameters
    ----------
    start : a schedule within the budget, as hint.
    spare : reruns of each operator beyond those of `start`.
    """
    build = _Intervals(stages, budget_bytes, start, spare)
    build.build()
    variables = build.listed()
    solution = solve_cpsat(build.model, [variable for variable, _ in variables], parameters)
    if solution.values is None:
        return None
    return build.draft(dict(zip((key for _, key in variables), solution.values, strict=True)))


@dataclass(slots=True)
class _Run:
    """One run of an operator, at a slot that may be a variable.

    Attributes
    ----------
    stage : expression of its stage.
    ways : literal of each implementation that it may use.
    hinted : its slot in the schedule to start from; None if it does not run there.
    ends : last slot of each storage instance that it may create.
    """

    operator: int
    stage: Any
    slot: Any
    ways: dict[int, Any]
    hinted: int | None
    ends: dict[int, Any] = field(default_factory=dict[int, Any])


@dataclass(slots=True)
class _Intervals:
    """Makes the model."""

    stages: Stages
    budget: int
    trial: SimulatedDraft
    spare: int
    start: Draft = field(init=False)
    last_slots: dict[tuple[int, int], int] = field(init=False)
    model: Any = field(init=False)
    span: int = field(init=False)
    unit: int = field(init=False)
    runs: dict[int, list[_Run]] = field(default_factory=dict[int, list[_Run]])
    backward: list[_Run] = field(default_factory=list[_Run])
    intervals: list[Any] = field(default_factory=list[Any])
    demands: list[int] = field(default_factory=list[int])
    cost: list[tuple[Any, int]] = field(default_factory=list[tuple[Any, int]])

    def __post_init__(self) -> None:
        self.model = import_cp_model().CpModel()
        self.span = len(self.stages.forward) + 1
        self.unit = max(1, self.budget // _BYTE_LEVELS)
        trial = self.trial
        self.start = trial.draft
        stage, operator = trial.steps[:, 0].astype(np.int64), trial.steps[:, 1]
        slots = stage * self.span + np.minimum(operator, self.span - 1)
        first, last = slots[trial.first].tolist(), slots[trial.last].tolist()
        self.last_slots = dict(
            zip(zip(trial.storage.tolist(), first, strict=True), last, strict=True)
        )

    def build(self) -> None:
        """Add the runs, what they create, and what they read."""
        for operator in self.stages.forward:
            self._forward(operator)
        for stage in range(1, self.stages.count + 1):
            self._backward(stage)
        for operator in self.stages.forward:
            for number, run in enumerate(self.runs[operator]):
                self._reads(run, first=number == 0)
        for run in self.backward:
            self._reads(run, first=False)
        for stage, entering_bytes in enumerate(self.stages.entering_bytes):
            self._occupy(
                self.model.new_fixed_size_interval_var(stage * self.span, self.span, ""),
                entering_bytes,
            )
        self.model.add_cumulative(self.intervals, self.demands, self.budget // self.unit)
        self.model.minimize(sum(literal * time for literal, time in self.cost))

    def _occupy(self, interval: Any, nbytes: int) -> None:
        if nbytes:
            self.intervals.append(interval)
            self.demands.append(-(-nbytes // self.unit))

    def _forward(self, operator: int) -> None:
        """Add the runs of a forward operator: in the forward pass, and again."""
        first = self._ways(operator, self.start.forward[operator], again=False)
        self.model.add_exactly_one(first.values())
        self.runs[operator] = [_Run(operator, 0, operator, first, operator)]
        last = max(
            (t for t in range(1, self.stages.count + 1) if self.stages.again(t, operator)),
            default=0,
        )
        hinted_stages = sorted(t for t, runs in enumerate(self.start.again) if operator in runs)
        count = (
            max(len(hinted_stages), min(_MOST_RERUNS, len(hinted_stages) + self.spare))
            if last
            else 0
        )
        before = None
        for number in range(count):
            there = hinted_stages[number] if number < len(hinted_stages) else None
            stage = self.model.new_int_var(self.stages.first_again, last, "")
            self.model.add_hint(stage, there or last)
            hinted_variant = self.start.again[there][operator] if there else None
            ways = self._ways(operator, hinted_variant, again=True)
            self.model.add_at_most_one(ways.values())
            if before is not None:
                for literal in ways.values():
                    self.model.add(stage >= before + 1).only_enforce_if(literal)
            slot = stage * self.span + operator
            hinted = there * self.span + operator if there else None
            self.runs[operator].append(_Run(operator, stage, slot, ways, hinted))
            before = stage
        for number, run in enumerate(self.runs[operator]):
            self._created(run, first=number == 0)

    def _backward(self, stage: int) -> None:
        operator = self.stages.backward(stage)
        ways = self._ways(operator, self.start.backward[stage - 1], again=False)
        self.model.add_exactly_one(ways.values())
        slot = stage * self.span + self.span - 1
        run = _Run(operator, stage, slot, ways, slot)
        for number, literal in ways.items():
            variant = self.stages.ways(operator)[number]
            self._occupy_slot(slot, literal, self.stages.run_bytes(variant))
        self.backward.append(run)

    def _ways(self, operator: int, hinted_variant: int | None, *, again: bool) -> dict[int, Any]:
        """Return a literal for each implementation of a run; in place only as in the start."""
        literals: dict[int, Any] = {}
        for number, variant in enumerate(self.stages.ways(operator)):
            if variant.overwrites is not None and (again or number != hinted_variant):
                continue
            literal = self.model.new_bool_var("")
            self.model.add_hint(literal, number == hinted_variant)
            self.cost.append((literal, round(variant.time_us * _NS_PER_US)))
            literals[number] = literal
        return literals

    def _occupy_slot(self, slot: Any, literal: Any, nbytes: int) -> None:
        if nbytes > 0:
            self._occupy(
                self.model.new_optional_fixed_size_interval_var(slot, 1, literal, ""), nbytes
            )

    def _created(self, run: _Run, *, first: bool) -> None:
        """Add the intervals of what a run creates, and its workspace."""
        stages = self.stages
        ways = {number: stages.ways(run.operator)[number] for number in run.ways}
        horizon = (stages.count + 1) * self.span - 1
        for storage in sorted(
            {created for variant in ways.values() for created in variant.creates}
        ):
            making = [
                run.ways[number] for number, variant in ways.items() if storage in variant.creates
            ]
            nbytes = stages.graph.storages[storage].nbytes
            if storage in stages.kept:
                length = self.span - run.operator if first else 1
                for literal in making:
                    self._occupy(
                        self.model.new_optional_fixed_size_interval_var(
                            run.slot, length, literal, ""
                        ),
                        nbytes,
                    )
                continue
            there = self.model.new_bool_var("")
            self.model.add(sum(making) == there)
            end, length = (
                self.model.new_int_var(0, horizon, ""),
                self.model.new_int_var(0, horizon + 1, ""),
            )
            self._occupy(
                self.model.new_optional_interval_var(run.slot, length, end + 1, there, ""), nbytes
            )
            self.model.add(end >= run.slot).only_enforce_if(there)
            last = None if run.hinted is None else self.last_slots.get((storage, run.hinted))
            self.model.add_hint(there, last is not None)
            self.model.add_hint(end, horizon if last is None else last)
            self.model.add_hint(
                length, 0 if last is None or run.hinted is None else last + 1 - run.hinted
            )
            run.ends[storage] = end
        for number, variant in ways.items():
            self._occupy_slot(run.slot, run.ways[number], variant.workspace_bytes)

    def _reads(self, run: _Run, *, first: bool) -> None:
        """Require an instance of each operand that is live at the run."""
        ways = self.stages.ways(run.operator)
        for storage in sorted({r for n in run.ways for r in self.stages.reads(ways[n])}):
            readers = [
                (run.ways[number], ways[number])
                for number in run.ways
                if storage in ways[number].reads
            ]
            sources = self.runs[self.stages.creator[storage]]
            sources = [source for source in sources[:1] if first] or sources
            sources = [source for source in sources if storage in source.ends]
            serving = [self._serves(source, run, storage) for source in sources]
            self._hint(run, storage, sources, serving)
            for literal, variant in readers:
                self.model.add_bool_or([*(served for served, _ in serving), ~literal])
                if variant.overwrites == storage:
                    self._ended(run, literal, serving)

    def _serves(self, source: _Run, run: _Run, storage: int) -> tuple[Any, Any]:
        """Return a literal that an instance of a storage is live at a run, and its end."""
        served, end = self.model.new_bool_var(""), source.ends[storage]
        making = [
            literal
            for number, literal in source.ways.items()
            if storage in self.stages.ways(source.operator)[number].creates
        ]
        self.model.add_bool_or(making).only_enforce_if(served)
        self.model.add(source.slot < run.slot).only_enforce_if(served)
        self.model.add(end >= run.slot).only_enforce_if(served)
        return served, end

    def _hint(
        self, run: _Run, storage: int, sources: list[_Run], serving: list[tuple[Any, Any]]
    ) -> None:
        """Hint the instance that a run reads in the schedule to start from: the latest one."""
        latest, slot = None, -1
        for number, source in enumerate(sources):
            is_hinted = source.hinted is not None and (storage, source.hinted) in self.last_slots
            if is_hinted and run.hinted is not None and slot < (source.hinted or 0) < run.hinted:
                latest, slot = number, source.hinted or 0
        reads = run.hinted is not None and self._reads_there(run, storage)
        for number, (served, _) in enumerate(serving):
            self.model.add_hint(served, reads and number == latest)

    def _reads_there(self, run: _Run, storage: int) -> bool:
        stage = (run.hinted or 0) // self.span
        implementation = self.start.way(stage, run.operator)
        return storage in self.stages.ways(run.operator)[implementation].reads

    def _ended(self, run: _Run, literal: Any, serving: list[tuple[Any, Any]]) -> None:
        """Require that an overwritten instance is read by nothing later; its memory counts once.

        The slot counts both, which is more than a replay does.
        """
        for served, end in serving:
            self.model.add(end == run.slot).only_enforce_if(served, literal)

    def listed(self) -> list[tuple[Any, tuple[int, int, int]]]:
        """Return the variables whose values are wanted, by operator, run and implementation.

        Implementation -1 is the stage of a rerun.
        """
        variables: list[tuple[Any, tuple[int, int, int]]] = []
        for operator, runs in self.runs.items():
            for number, run in enumerate(runs):
                variables += [
                    (literal, (operator, number, implementation))
                    for implementation, literal in run.ways.items()
                ]
                if number:
                    variables.append((run.stage, (operator, number, -1)))
        for run in self.backward:
            variables += [
                (literal, (run.operator, 0, implementation))
                for implementation, literal in run.ways.items()
            ]
        return variables

    def draft(self, values: dict[tuple[int, int, int], float]) -> Draft:
        """Return the schedule of a solution."""
        draft = Draft.plain(self.stages)
        for (operator, number, implementation), value in values.items():
            if implementation < 0 or value < 0.5:
                continue
            if operator not in self.stages.forward:
                draft.backward[operator - len(self.stages.forward)] = implementation
            elif number:
                draft.again[int(values[operator, number, -1])][operator] = implementation
            else:
                draft.forward[operator] = implementation
        return draft
