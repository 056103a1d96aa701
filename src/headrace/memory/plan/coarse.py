"""A small relaxation, for bounds of large steps: memory is looked at in few stages only.

Between two of these stages it is only known whether an operator runs again, not where. So the
program's size is that of the graph times the number of stages looked at, and its optimum is a bound
of every schedule that runs the forward pass once, whatever it runs again, and how often. Rows on
the future (`headrace.memory.plan.liveness`) make it about as strong as the relaxation of the exact
program: what holds the bound up is mostly the memory where the forward pass ends.
"""

from dataclasses import dataclass, field

import numpy as np

from headrace.memory.graph import Graph
from headrace.memory.plan.program import Rows, Terms
from headrace.memory.plan.stages import Stages
from headrace.solver import LinearModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseProgram:
    """The relaxation, and the meaning of its variables.

    Attributes
    ----------
    ways : variable of each (operator, implementation), of the forward pass and of backward
        operators.
    stored : variable of a storage that is live when the forward pass has ended.
    """

    model: LinearModel
    ways: dict[tuple[int, int], int]
    stored: dict[int, int]

    def choice(self, graph: Graph, values: np.ndarray) -> list[int]:
        """Return of every operator the implementation of most weight.

        Of those that overwrite only the first is taken, which a plain run may use.
        """
        return [
            max(
                (
                    number
                    for number, variant in enumerate(op.implementations)
                    if not number or variant.overwrites is None
                ),
                key=lambda number, index=index: float(values[self.ways[index, number]]),
            )
            for index, op in enumerate(graph.operators)
        ]


def coarse_program(graph: Graph, budget_bytes: int, count: int) -> CoarseProgram:
    """Return the relaxation that looks at the memory in `count` stages, evenly spread.

    In each it is that of the backward operator's run; all of the forward pass is looked at.
    """
    build = _Coarse(Stages(graph), budget_bytes, count)
    build.choices()
    build.states()
    build.forward_memory()
    for part in range(len(build.ends)):
        build.reruns(part)
    for part in range(len(build.ends)):
        build.interval(part)
    build.futures()
    for part in range(1, len(build.ends)):
        build.memory(part)
    model = LinearModel()
    model.add_variables(len(build.cost), upper=1.0, cost=np.array(build.cost, float))
    build.rows.put(model)
    stored = {storage: number for (part, storage), number in build.state.items() if not part}
    return CoarseProgram(model=model, ways=build.ways, stored=stored)


@dataclass(slots=True)
class _Coarse:
    """Makes the variables and rows.

    Attributes
    ----------
    ends : by part, the stage whose backward operator it follows; 0: the forward pass. A part ends
        with the run of the next one's.
    state : by (part, storage) that it is live when the part begins, in the run before it.
    again : by (part, operator) that it runs again in the part, at least once.
    """

    stages: Stages
    budget: int
    count: int
    ends: list[int] = field(init=False)
    rows: Rows = field(default_factory=Rows)
    cost: list[float] = field(default_factory=list[float])
    ways: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    state: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    again: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __post_init__(self) -> None:
        last = self.stages.count
        parts = min(self.count, last)
        self.ends = [0, *sorted({1 + index * last // parts for index in range(parts)})]

    def _variable(self, cost: float = 0.0) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def choices(self) -> None:
        """Add one implementation of each first run (4.9)."""
        for operator in range(len(self.stages.graph.operators)):
            for number, variant in enumerate(self.stages.ways(operator)):
                self.ways[operator, number] = self._variable(variant.time_us)
            self.rows.add(self._all_ways(operator), lower=1.0, upper=1.0)

    def _all_ways(self, operator: int) -> Terms:
        count = len(self.stages.ways(operator))
        return [(self.ways[operator, number], 1.0) for number in range(count)]

    def states(self) -> None:
        """Add the storages that are live when a part begins."""
        for part, stage in enumerate(self.ends):
            for storage in sorted(self.stages.useful[max(stage, 1)] if self.stages.count else ()):
                self.state[part, storage] = self._variable()
        for storage in sorted(self.stages.useful[1] if self.stages.count else ()):
            creator = self.stages.creator[storage]
            creating = [
                (self.ways[creator, number], -1.0)
                for number, variant in enumerate(self.stages.ways(creator))
                if storage in variant.creates
            ]
            self.rows.add([(self.state[0, storage], 1.0), *creating], upper=0.0)

    def reruns(self, part: int) -> None:
        """Add the operators that may run again in a part."""
        stage = self.ends[part] + 1
        if stage > self.stages.count:
            return
        for operator in self.stages.forward:
            if self.stages.again(stage, operator):
                least = min(variant.time_us for variant in self.stages.ways(operator))
                self.again[part, operator] = self._variable(least)

    def _stages_of(self, part: int) -> range:
        """Return the stages that end in a part."""
        last = self.ends[part + 1] if part + 1 < len(self.ends) else self.stages.count
        return range(self.ends[part] + 1, last + 1)

    def _reading(self, stage: int) -> dict[int, Terms]:
        """Return the implementations of a backward operator by what they read."""
        reading: dict[int, Terms] = {}
        operator = self.stages.backward(stage)
        for number, variant in enumerate(self.stages.ways(operator)):
            for storage in self.stages.reads(variant):
                reading.setdefault(storage, []).append((self.ways[operator, number], 1.0))
        return reading

    def _supplied(self, terms: Terms, part: int, storage: int, again: dict[int, int]) -> None:
        """Require a storage to be there when a part begins, or to be made then."""
        there = self.state.get((part, storage))
        self.rows.supply(terms, there, again.get(self.stages.creator[storage]))

    def interval(self, part: int) -> None:
        """Add 4.7 and 4.8 of a part: what is read in it was there before, or is made in it."""
        again = {
            by: number for (rerun_part, by), number in self.again.items() if rerun_part == part
        }
        for operator, number in again.items():
            for storage in self.stages.operands(operator):
                self._supplied([(number, 1.0)], part, storage, again)
        for stage in self._stages_of(part):
            for storage, terms in self._reading(stage).items():
                self._supplied(terms, part, storage, again)
        if part + 1 < len(self.ends):
            for (state_part, storage), number in self.state.items():
                if state_part == part + 1:
                    self._supplied([(number, 1.0)], part, storage, again)
            for storage, terms in self._reading(self.ends[part + 1]).items():
                self.rows.add([*terms, (self.state[part + 1, storage], -1.0)], upper=0.0)

    def futures(self) -> None:
        """Add the same for all parts from one on, together."""
        after: dict[int, int] = {}
        for part in reversed(range(len(self.ends))):
            later: dict[int, int] = {}
            for operator in self.stages.forward:
                numbers = [after.get(operator), self.again.get((part, operator))]
                terms = [(number, -1.0) for number in numbers if number is not None]
                if terms:
                    later[operator] = self._variable()
                    self.rows.add([(later[operator], 1.0), *terms], upper=0.0)
            for operator, number in later.items():
                for storage in self.stages.operands(operator):
                    self._supplied([(number, 1.0)], part, storage, later)
            for stage in range(self.ends[part] + 1, self.stages.count + 1):
                for storage, terms in self._reading(stage).items():
                    self._supplied(terms, part, storage, later)
            after = later

    def _limit(self, terms: Terms, fixed: int) -> None:
        scale = float(max(self.budget, 1))
        self.rows.add(
            [(number, value / scale) for number, value in terms],
            upper=(self.budget - fixed) / scale,
        )

    def _run(self, operator: int) -> Terms:
        return [
            (self.ways[operator, number], float(self.stages.run_bytes(variant)))
            for number, variant in enumerate(self.stages.ways(operator))
        ]

    def forward_memory(self) -> None:
        """Add the memory in the forward pass (4.1)."""
        stages, fixed_bytes = self.stages, self.stages.graph.resident_bytes
        needed = {
            storage: max((by for by in readers if storage in self.stages.operands(by)), default=-1)
            for storage, readers in stages.readers.items()
        }
        for operator in stages.forward:
            terms = self._run(operator)
            for storage, creator in stages.creator.items():
                if creator >= operator:
                    continue
                size = float(stages.graph.storages[storage].nbytes)
                if needed[storage] >= operator:  # L_i
                    terms += [
                        (self.ways[creator, number], size)
                        for number, variant in enumerate(stages.ways(creator))
                        if storage in variant.creates
                    ]
                elif (0, storage) in self.state:
                    terms.append((self.state[0, storage], size))
            self._limit(terms, fixed_bytes)
            ways = stages.ways(operator)
            fixed_bytes += stages.nbytes(
                {created for variant in ways for created in variant.creates} & stages.kept
            )

    def memory(self, part: int) -> None:
        """Add the memory in the run of the backward operator before a part (4.12)."""
        stage = self.ends[part]
        terms = self._run(self.stages.backward(stage))
        for (state_part, storage), number in self.state.items():
            if state_part == part:
                terms.append((number, float(self.stages.graph.storages[storage].nbytes)))
        self._limit(terms, self.stages.entering_bytes[stage])
