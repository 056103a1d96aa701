"""The exact program: storages are live as long as they are read, and memory is a running sum.

Within a stage a storage can only come and go at its *events*: the forward operator that creates
it, those that read it, and the backward operator if it does. Between two events it is live or not,
one variable each; before the first it is live if it enters the stage, after the last if it leaves.
So the memory at every step is what a replay of the schedule finds, where the paper's program (4.14
with the upper bound of L_i^k) has a bound of it. The memory at a step is the one before plus what
came minus what went (as in Checkmate, Jain et al. 2020, section 4.4), so the rows stay short.

The relaxation alone would let a rerun be cheap: a hundredth of an operand, kept through a hundred
stages, serves a hundredth of a rerun in each of them. Rows on the *future* of some stages exclude
that: what is computed again in a stage or later has its operands from what enters the stage, or has
them computed again in that stage or later, too, each wholly. Solutions in 0-1 values satisfy them.

Its optimum is that of the class of `headrace.memory.plan.stages`. Two cases where it can lie below,
which keeps it a bound: outputs that are computed again count while they are created only, and
gradients with readers that depend on implementations as briefly as possible.
"""

from dataclasses import dataclass, field

from headrace.memory.graph import Graph
from headrace.memory.plan.program import Rows, Run, Runs, StepProgram, Terms
from headrace.memory.plan.stages import Stages
from headrace.solver import LinearModel

_FUTURES = 6
"""Stages with rows on their future, evenly spread; more raise the bound hardly."""


def exact_program(graph: Graph, budget_bytes: int, futures: int = _FUTURES) -> StepProgram:
    """Return the program of which the optimum is the fastest schedule within the budget.

    Parameters
    ----------
    futures : how many stages have rows on their future, the first one among them.
    """
    stages, model, rows = Stages(graph), LinearModel(), Rows()
    runs = Runs.add(model, stages)
    runs.choose(rows)
    build = _Exact(stages, runs, rows, model.variables)
    build.lifetimes()
    model.add_binaries(build.variables - model.variables)
    build.futures(futures)
    build.memory(budget_bytes)
    # indicators, and live bytes as a share of the budget
    model.add_variables(build.variables - model.variables, upper=1.0)
    rows.put(model)
    return StepProgram(model=model, runs=runs)


@dataclass(slots=True)
class _Exact:
    """Makes the variables and rows.

    Attributes
    ----------
    variables : how many there are, with those that are still to be added to the model.
    entering : variable of a storage that enters a stage.
    change : by (stage, slot) terms of storages that are live in the next slot and not in this, in
        bytes; slots of a stage are the forward operators, then the backward operator.
    """

    stages: Stages
    runs: Runs
    rows: Rows
    variables: int
    entering: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    change: dict[tuple[int, int], list[tuple[int, float]]] = field(
        default_factory=dict[tuple[int, int], list[tuple[int, float]]]
    )

    def lifetimes(self) -> None:
        """Add the variables between events, and the rows on them.

        Storages that runs read are live (4.7, 4.8): from the run that creates one to the run that
        overwrites it (4.7, 4.10, 4.11).
        """
        reading: dict[tuple[int, int, int], list[tuple[Run, int]]] = {}
        for run, number in self.runs.variables.items():
            slot = self._slot(run)
            for storage in self.stages.reads(run.variant):
                reading.setdefault((run.stage, storage, slot), []).append((run, number))
        for stage in range(self.stages.count + 1):
            for storage in sorted(self.stages.useful[stage]):
                self._lifetime(stage, storage, reading)

    def _slot(self, run: Run) -> int:
        return min(run.operator, self.stages.graph.forward_count)

    def _lifetime(
        self, stage: int, storage: int, reading: dict[tuple[int, int, int], list[tuple[Run, int]]]
    ) -> None:
        """Add a storage's variables of one stage, event by event."""
        there = self.entering.get((stage, storage))
        creating = self.runs.made(stage, storage)
        if there is None and not creating:
            # read by nothing here: the rows of its readers would have no terms to cover them
            for slot in self._slots(storage):
                for _, number in reading.get((stage, storage, slot), ()):
                    self.rows.add([(number, 1.0)], upper=0.0)
            return
        if creating:
            after = self._variable()
            before = [] if there is None else [(there, -1.0)]
            self.rows.add(
                [(after, 1.0), *before, *((number, -1.0) for number in creating)], upper=0.0
            )
            self._step(stage, self.stages.creator[storage], storage, there, after)
            there = after
        for slot in self._slots(storage):
            readers = reading.get((stage, storage, slot), [])
            if not readers:
                continue
            assert there is not None
            # delta <= there, of one operator's implementations together
            self.rows.add([*((number, 1.0) for _, number in readers), (there, -1.0)], upper=0.0)
            after = self._variable()
            gone = [(number, 1.0) for run, number in readers if run.variant.overwrites == storage]
            self.rows.add([(after, 1.0), (there, -1.0)], upper=0.0)
            if gone:
                self.rows.add([(after, 1.0), *gone], upper=1.0)
            self._step(stage, slot, storage, there, after)
            there = after
        if stage < self.stages.count and storage in self.stages.useful[stage + 1]:
            assert there is not None
            self.entering[stage + 1, storage] = there

    def _slots(self, storage: int) -> list[int]:
        return [*self.stages.readers[storage], self.stages.graph.forward_count]

    def _variable(self) -> int:
        self.variables += 1
        return self.variables - 1

    def _step(self, stage: int, slot: int, storage: int, before: int | None, after: int) -> None:
        size = float(self.stages.graph.storages[storage].nbytes)
        terms = self.change.setdefault((stage, slot), [])
        terms.append((after, size))
        if before is not None:
            terms.append((before, -size))

    def futures(self, count: int) -> None:
        """Add the rows on the future of some stages, from the last one to the first."""
        last = self.stages.count
        future_stages = (
            {1 + index * last // count for index in range(min(count, last))} if last else set()
        )
        after: dict[int, int] = {}
        end = last + 1
        for stage in sorted(future_stages, reverse=True):
            again = self._indicators(stage, end, after)
            for operator, number in again.items():
                for storage in self.stages.operands(operator):
                    self._supply(stage, storage, [(number, 1.0)], again)
            for later in range(stage, last + 1):
                reading: dict[int, Terms] = {}
                for run, number in self.runs.of_operator(later, self.stages.backward(later)):
                    for storage in self.stages.reads(run.variant):
                        reading.setdefault(storage, []).append((number, 1.0))
                for storage, terms in reading.items():
                    self._supply(stage, storage, terms, again)
            after, end = again, stage

    def _indicators(self, stage: int, end: int, after: dict[int, int]) -> dict[int, int]:
        """Add by operator: at most 1 if it runs again in a stage or later, else 0."""
        indicators: dict[int, int] = {}
        for operator in self.stages.forward:
            terms = [
                (number, -1.0)
                for later in range(stage, end)
                for _, number in self.runs.of_operator(later, operator)
            ]
            if operator in after:
                terms.append((after[operator], -1.0))
            if terms:
                indicators[operator] = self._variable()
                self.rows.add([(indicators[operator], 1.0), *terms], upper=0.0)
        return indicators

    def _supply(self, stage: int, storage: int, terms: Terms, again: dict[int, int]) -> None:
        """Require a storage that is read in a stage or later to enter it or to be made then."""
        there = self.entering.get((stage, storage))
        self.rows.supply(terms, there, again.get(self.stages.creator[storage]))

    def memory(self, budget_bytes: int) -> None:
        """Add the running sums, and that no run needs more than the budget.

        In place of 4.1 to 4.6 and 4.12 to 4.15: there every sum is over all storages.
        """
        stages, scale = self.stages, float(max(budget_bytes, 1))
        graph, fixed_bytes = stages.graph, 0
        for stage in range(stages.count + 1):
            fixed = stages.entering_bytes[stage]
            live = [
                (self.entering[stage, storage], stages.graph.storages[storage].nbytes / scale)
                for storage in sorted(stages.useful[stage])
                if (stage, storage) in self.entering
            ]
            last = graph.forward_count if stage else graph.forward_count - 1
            for slot in range(last + 1):
                operator = slot if slot < graph.forward_count else stages.backward(stage)
                runs = self.runs.of_operator(stage, operator)
                changes = self.change.get((stage, slot), [])
                if not runs and not changes:
                    continue
                there = self._variable()
                # live bytes while the slot's operator runs
                self.rows.add(
                    [(there, 1.0), *((n, -value) for n, value in live)], lower=0.0, upper=0.0
                )
                spent = [(number, stages.run_bytes(run.variant) / scale) for run, number in runs]
                self.rows.add(
                    [(there, 1.0), *spent], upper=(budget_bytes - fixed - fixed_bytes) / scale
                )
                live = [(there, 1.0), *((n, value / scale) for n, value in changes)]
                if stage == 0:
                    created = {
                        storage for variant in stages.ways(operator) for storage in variant.creates
                    }
                    fixed_bytes += stages.nbytes(created & stages.kept)
            fixed_bytes = 0
