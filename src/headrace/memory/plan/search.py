"""Local search for fast schedules within a budget, by an engine that is passed in.

The native engine's moves are explained in native/memory/search.hpp, its simulation in draft.hpp.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from headrace.memory.plan.draft import Draft, SimulatedDraft
from headrace.memory.plan.engine import ScheduleEngine, ScheduleMoves
from headrace.memory.plan.repeats import Block, repeated_blocks
from headrace.memory.plan.stages import Stages


@dataclass(slots=True)
class Search:
    """Moves on the drafts of one graph and budget.

    Equal seeds give equal results where `stop` does not end them.

    Attributes
    ----------
    stop : polled in all moves, some hundred times a second; true ends them with what they have.
    repeated : equal blocks, class by class.
    """

    stages: Stages
    budget: int
    engine: ScheduleEngine
    seed: int = 0
    stop: Callable[[], bool] = lambda: False
    repeated: list[list[Block]] = field(init=False)
    _moves: ScheduleMoves = field(init=False)

    def __post_init__(self) -> None:
        self.repeated = repeated_blocks(self.stages.graph)
        self._moves = self.engine(
            **_tables(self.stages),
            budget=self.budget,
            seed=self.seed,
            repeated=[
                [(block.forward, block.backward) for block in blocks] for blocks in self.repeated
            ],
        )

    def simulated(self, draft: Draft) -> SimulatedDraft | None:
        """Return a draft with its simulation; None if it reads what is not live."""
        steps = np.array(draft.steps(), dtype=np.int32).reshape(-1, 3)
        simulation = self._moves.simulate(steps.reshape(-1))
        if simulation is None:
            return None
        time_us, excess, nbytes, storage, first, last = simulation
        return SimulatedDraft(
            draft=draft,
            steps=steps,
            time_us=time_us,
            excess=excess,
            bytes=nbytes,
            storage=storage,
            first=first,
            last=last,
        )

    def repair(self, trial: SimulatedDraft, noise: float = 0.0) -> SimulatedDraft:
        """Return a draft that fits, or the one with the least excess that moves lead to.

        Parameters
        ----------
        noise : standard deviation of the logarithm by which moves' merits are disturbed.
        """
        return self._moved(self._moves.repair(trial.steps.reshape(-1), noise, self.stop))

    def polish(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return a draft that fits, too, without reruns and slow ways that it can do without."""
        return self._moved(self._moves.polish(trial.steps.reshape(-1), self.stop))

    def exchanged(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the best draft with other implementations that are faster together."""
        return self._moved(self._moves.exchanged(trial.steps.reshape(-1), self.stop))

    def spread(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the best draft in which equal blocks are like one of them."""
        return self._moved(self._moves.spread(trial.steps.reshape(-1), self.stop))

    def improve(
        self,
        trial: SimulatedDraft,
        rounds: int,
        stop: Callable[[], bool],
        report: Callable[[SimulatedDraft], None],
    ) -> SimulatedDraft:
        """Return the best draft of some rounds that change, repair and polish.

        Parameters
        ----------
        stop : in place of the search's own.
        report : called with every faster draft.
        """
        steps = self._moves.improve(
            trial.steps.reshape(-1), rounds, stop, lambda steps: report(self._moved(steps))
        )
        return self._moved(steps)

    def _moved(self, steps: np.ndarray) -> SimulatedDraft:
        """Return the draft of the steps that a move returns."""
        draft = Draft.plain(self.stages)
        for stage, operator, number in steps.reshape(-1, 3).tolist():
            draft.set_way(stage, operator, number)
        trial = self.simulated(draft)
        assert trial is not None, "a move returned a draft that reads what is not live"
        return trial


def _tables(stages: Stages) -> dict[str, Any]:
    """Return the tables of a graph that the engine takes, implementations by their numbers."""
    graph = stages.graph
    implementations = [row for operator in graph.operators for row in operator.implementations]
    counts = [len(operator.implementations) for operator in graph.operators]
    reads_first, reads = _flat([row.reads for row in implementations])
    creates_first, creates = _flat([row.creates for row in implementations])
    overwrites = [-1 if row.overwrites is None else row.overwrites for row in implementations]
    creator = [stages.creator.get(storage, -1) for storage in range(len(graph.storages))]
    return {
        "forward_count": graph.forward_count,
        "resident_bytes": graph.resident_bytes,
        "first_way": np.array([0, *accumulate(counts)], dtype=np.int32),
        "again": np.array([operator.again for operator in graph.operators], dtype=np.uint8),
        "reads_first": reads_first,
        "reads": reads,
        "creates_first": creates_first,
        "creates": creates,
        "overwrites": np.array(overwrites, dtype=np.int32),
        "time_us": np.array([row.time_us for row in implementations]),
        "workspace_bytes": np.array([row.workspace_bytes for row in implementations], np.int64),
        "nbytes": np.array([storage.nbytes for storage in graph.storages], dtype=np.int64),
        "creator": np.array(creator, dtype=np.int32),
        "outputs": np.array(sorted(graph.outputs), dtype=np.int32),
        "results": np.array(sorted(graph.results), dtype=np.int32),
    }


def _flat(lists: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return where each list begins, and the numbers of all."""
    first = np.array([0, *accumulate(map(len, lists))], dtype=np.int64)
    return first, np.array([number for row in lists for number in row], dtype=np.int32)
