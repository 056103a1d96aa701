"""Local search for fast schedules within a budget, in the native core.

Its moves are explained in native/memory/search.hpp. Each result is simulated here again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from headrace import _native
from headrace.memory.plan.draft import Draft, Evaluator, SimulatedDraft
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
    seed: int = 0
    stop: Callable[[], bool] = lambda: False
    evaluator: Evaluator = field(init=False)
    repeated: list[list[Block]] = field(init=False)
    _moves: _native.ScheduleSearch = field(init=False)

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.stages, self.budget)
        self.repeated = repeated_blocks(self.stages.graph)
        self._moves = _native_search(self.stages, self.budget, self.seed, self.repeated)

    def repair(self, trial: SimulatedDraft, noise: float = 0.0) -> SimulatedDraft:
        """Return a draft that fits, or the one with the least excess that moves lead to.

        Parameters
        ----------
        noise : standard deviation of the logarithm by which moves' merits are disturbed.
        """
        return self._simulated(self._moves.repair(_steps(trial.draft), noise, self.stop))

    def polish(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return a draft that fits, too, without reruns and slow ways that it can do without."""
        return self._simulated(self._moves.polish(_steps(trial.draft), self.stop))

    def exchanged(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the best draft with other implementations that are faster together."""
        return self._simulated(self._moves.exchanged(_steps(trial.draft), self.stop))

    def spread(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the best draft in which equal blocks are like one of them."""
        return self._simulated(self._moves.spread(_steps(trial.draft), self.stop))

    def improve(
        self,
        trial: SimulatedDraft,
        rounds: int,
        stop: Callable[[], bool],
        found: Callable[[SimulatedDraft], None],
    ) -> SimulatedDraft:
        """Return the best draft of some rounds that change, repair and polish.

        Parameters
        ----------
        stop : in place of the search's own.
        found : called with every faster draft.
        """
        steps = self._moves.improve(
            _steps(trial.draft), rounds, stop, lambda steps: found(self._simulated(steps))
        )
        return self._simulated(steps)

    def _simulated(self, steps: np.ndarray) -> SimulatedDraft:
        draft = Draft.plain(self.stages)
        for stage, operator, way in steps.reshape(-1, 3).tolist():
            draft.set_way(stage, operator, way)
        trial = self.evaluator.try_(draft)
        assert trial is not None, "the native simulation accepts what this one does not"
        return trial


def _steps(draft: Draft) -> np.ndarray:
    """Return (3 * steps,) int32: stage, operator and implementation of each step."""
    return np.array(draft.steps(), dtype=np.int32).reshape(-1)


def _native_search(
    stages: Stages, budget: int, seed: int, repeated: list[list[Block]]
) -> _native.ScheduleSearch:
    graph = stages.graph
    ways = [way for operator in graph.operators for way in operator.implementations]
    counts = [len(operator.implementations) for operator in graph.operators]
    reads_first, reads = _rows([way.reads for way in ways])
    creates_first, creates = _rows([way.creates for way in ways])
    over = [-1 if way.overwrites is None else way.overwrites for way in ways]
    creator = [stages.creator.get(storage, -1) for storage in range(len(graph.storages))]
    return _native.ScheduleSearch(
        forward_count=graph.forward_count,
        resident_bytes=graph.resident_bytes,
        first_way=np.array([0, *accumulate(counts)], dtype=np.int32),
        again=np.array([operator.again for operator in graph.operators], dtype=np.uint8),
        reads_first=reads_first,
        reads=reads,
        creates_first=creates_first,
        creates=creates,
        overwrites=np.array(over, dtype=np.int32),
        time_us=np.array([way.time_us for way in ways]),
        workspace_bytes=np.array([way.workspace_bytes for way in ways], dtype=np.int64),
        nbytes=np.array([each.nbytes for each in graph.storages], dtype=np.int64),
        creator=np.array(creator, dtype=np.int32),
        outputs=np.array(sorted(graph.outputs), dtype=np.int32),
        results=np.array(sorted(graph.results), dtype=np.int32),
        budget=budget,
        seed=seed,
        repeated=[[(each.forward, each.backward) for each in blocks] for blocks in repeated],
    )


def _rows(lists: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return where each list begins, and the items of all."""
    first = np.array([0, *accumulate(map(len, lists))], dtype=np.int64)
    return first, np.array([item for each in lists for item in each], dtype=np.int32)
