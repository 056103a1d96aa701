"""The paper's 0-1 program (equations 4.1 to 4.16, as corrected), on any training step.

Stages count up from 0, the forward pass (`headrace.memory.plan.stages`); the paper's count down.
Read k of the paper as the stage, s^k as what enters it and s^(k-1) as what leaves it. An operator
may create several storages, so s is by storage and r by operator; r_j where the paper asks for a
recomputed tensor is the sum of the implementations that create it.

Departures, each where its rows are made:

- 4.7 takes s^k, what enters the stage, and so does 4.8: an operand need not leave the stage that
  reads it for the last time.
- q_i^k is the sum of the implementations that overwrite; p is not needed: it stands for "computed
  and not overwritten", and both halves are rows of their own. In the forward pass, too.
  In place is an operator only where it is its operand's last reader of the forward pass.
- 4.16 uses the upper bound of L_i^k, so the optimum is that of a restriction: its schedules fit,
  its bound certifies nothing. The exact model is `headrace.memory.plan.liveness`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.memory.graph import Graph
from headrace.memory.plan.program import Rows, Runs, StepProgram
from headrace.memory.plan.stages import Stages
from headrace.solver import LinearModel


def paper_program(graph: Graph, budget_bytes: int) -> StepProgram:
    """Return the program of 4.2.2 and 4.3; with one implementation each it is MONeT-NoOp."""
    stages, model, rows = Stages(graph), LinearModel(), Rows()
    runs = Runs.add(model, stages)
    # in place is a forward operator only where it is the last of the forward pass to read its
    # operand; where others read it, but not in the same stage, that is stricter than needed
    for run, number in runs.variables.items():
        over = run.variant.overwrites
        inner = over in stages.creator and run.operator in stages.forward
        if inner and stages.readers[over][-1] != run.operator:
            rows.add([(number, 1.0)], upper=0.0)
    build = _Paper(stages, runs, model, rows, budget_bytes)
    runs.choose(rows)
    build.coverage()
    build.forward_memory()
    for stage in range(1, stages.count + 1):
        build.backward_memory(stage)
        build.recomputation_memory(stage)
    rows.put(model)
    return StepProgram(model=model, runs=runs)


@dataclass(slots=True)
class _Paper:
    """Makes the rows. `stored`: s_j, by the stage that it enters."""

    stages: Stages
    runs: Runs
    model: LinearModel
    rows: Rows
    budget: int
    stored: dict[tuple[int, int], int] = field(init=False)
    union: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        self.stored = self._variables()
        self.union = self._variables()

    def _variables(self) -> dict[tuple[int, int], int]:
        keys = [
            (stage, storage)
            for stage in range(1, self.stages.count + 1)
            for storage in sorted(self.stages.useful[stage])
        ]
        numbers = self.model.add_binaries(len(keys)).tolist()
        return dict(zip(keys, numbers, strict=True))

    def _entering(self, stage: int, storage: int, sign: float = 1.0) -> list[tuple[int, float]]:
        found = self.stored.get((stage, storage))
        return [] if found is None else [(found, sign)]

    def _overwriting(self, stage: int, storage: int) -> list[int]:
        """Return the variables of forward runs that overwrite a storage in a stage (q_i^k)."""
        readers = self.stages.readers[storage]
        if not readers:
            return []
        return [
            number
            for run, number in self.runs.of_operator(stage, readers[-1])
            if run.variant.overwrites == storage
        ]

    def _ending(self, stage: int, storage: int) -> list[int]:
        """Return the variables of runs after which a storage cannot leave a stage."""
        backward = self.runs.of_operator(stage, self.stages.backward(stage)) if stage else []
        last = [number for run, number in backward if run.variant.overwrites == storage]
        return self._overwriting(stage, storage) + last

    def coverage(self) -> None:
        """Add 4.7, 4.8 and 4.10: what is read is there, what is stored was."""
        stages, runs = self.stages, self.runs
        for run, number in runs.variables.items():
            for storage in stages.reads(run.variant):
                # 4.7, first half: r_i^k <= s_j^k + r_j^k; 4.8: delta_k,l <= s_i^k + r_i^k
                there = [(each, -1.0) for each in runs.made(run.stage, storage)]
                there += self._entering(run.stage, storage, -1.0)
                self.rows.add([(number, 1.0), *there], upper=0.0)
                if run.operator not in stages.forward:
                    # with 4.10: the backward operator reads nothing that is overwritten
                    gone = [(each, 1.0) for each in self._overwriting(run.stage, storage)]
                    if gone:
                        self.rows.add([(number, 1.0), *gone], upper=1.0)
        for (stage, storage), number in self.stored.items():
            # 4.7, second half: s_i^(k-1) <= s_i^k + r_i^k, for the stage before
            there = [(each, -1.0) for each in runs.made(stage - 1, storage)]
            there += self._entering(stage - 1, storage, -1.0)
            self.rows.add([(number, 1.0), *there], upper=0.0)
            # 4.10: s_j^(k-1) <= 1 - q_i^k
            for over in self._ending(stage - 1, storage):
                self.rows.add([(number, 1.0), (over, 1.0)], upper=1.0)

    def _run(self, stage: int, operator: int) -> list[tuple[int, float]]:
        """Return c_i + |x_i| of the implementation that runs, as terms."""
        return [
            (number, float(self.stages.run_bytes(run.variant)))
            for run, number in self.runs.of_operator(stage, operator)
        ]

    def _limit(self, terms: Iterable[tuple[int, float]], fixed: int) -> None:
        """Add a memory row, in units of the budget."""
        scale = float(max(self.budget, 1))
        self.rows.add(
            [(number, value / scale) for number, value in terms],
            upper=(self.budget - fixed) / scale,
        )

    def forward_memory(self) -> None:
        """Add m_i <= M (4.1, 4.4), with the implementations of 4.2.2."""
        stages = self.stages
        kept = stages.graph.resident_bytes
        for operator in stages.forward:
            terms = self._run(0, operator)
            for storage, creator in stages.creator.items():
                if creator >= operator:
                    continue
                size = float(stages.graph.storages[storage].nbytes)
                if any(reader >= operator for reader in stages.readers[storage]):  # L_i
                    terms += [(number, size) for number in self.runs.made(0, storage)]
                else:
                    terms += self._entering(1, storage, size)
            self._limit(terms, kept)
            ways = stages.ways(operator)
            kept += stages.nbytes({each for way in ways for each in way.creates} & stages.kept)

    def _operands(self, stage: int) -> dict[int, list[int]]:
        """Return delta_k,l by storage in D_k^l."""
        found: dict[int, list[int]] = {}
        for run, number in self.runs.of_operator(stage, self.stages.backward(stage)):
            for storage in self.stages.reads(run.variant):
                found.setdefault(storage, []).append(number)
        return found

    def backward_memory(self, stage: int) -> None:
        """Add m^_k <= M (4.12): the products delta * s of D_k^l and S^(k-1) as their union.

        For 0-1 values the union variable is the larger of the two, as the product terms of 4.3.4
        are in sum over the implementations.
        """
        stages, operands = self.stages, self._operands(stage)
        terms = self._run(stage, stages.backward(stage))
        for storage in sorted(stages.useful[stage]):
            union = self.union[stage, storage]
            if storage in operands:
                read = [(number, -1.0) for number in operands[storage]]
                self.rows.add([(union, 1.0), *read], lower=0.0)
            for leaving, _ in self._entering(stage + 1, storage):
                self.rows.add([(union, 1.0), (leaving, -1.0)], lower=0.0)
            terms.append((union, float(stages.graph.storages[storage].nbytes)))
        self._limit(terms, stages.entering_bytes[stage])

    def recomputation_memory(self, stage: int) -> None:
        """Add m_Ri^k <= M (4.14) with the upper bound of L_i^k, and m_Si^k <= M (4.15)."""
        stages = self.stages
        for operator in stages.forward:
            run = self._run(stage, operator)
            if not run:
                continue
            recomputed: list[tuple[int, float]] = list(run)
            stored: list[tuple[int, float]] = []
            ran = [number for _, number in self.runs.of_operator(stage, operator)]
            for storage in sorted(stages.useful[stage]):
                creator = stages.creator[storage]
                size = float(stages.graph.storages[storage].nbytes)
                union = (self.union[stage, storage], size)
                entering = self._entering(stage, storage, size)
                if creator > operator:
                    recomputed += entering
                elif creator < operator and self._local(stage, storage, operator):
                    recomputed += [(number, size) for number in ran]
                elif creator < operator or not self._remade(operator, storage):
                    recomputed.append(union)
                stored += [union] if creator <= operator else entering
            self._limit(recomputed, stages.entering_bytes[stage])
            self._limit(stored, stages.entering_bytes[stage])

    def _remade(self, operator: int, storage: int) -> bool:
        """Return whether every implementation of an operator creates a storage."""
        return all(storage in way.creates for way in self.stages.ways(operator))

    def _local(self, stage: int, storage: int, operator: int) -> bool:
        """Return whether a storage is in the upper bound of L_i^k: a later rerun may read it."""
        return any(
            reader >= operator and self.runs.of_operator(stage, reader)
            for reader in self.stages.readers[storage]
        )
