"""Local search for fast schedules within a budget.

In a draft any set of reruns is a valid schedule: what is not computed again is kept until its next
read. So the search adds and removes reruns. `repair` lowers the memory at the highest step until
all steps fit; each of its moves ends a storage's life before that step and computes it again for
its next reader, with all that this needs, or runs an operator by another implementation. `polish`
removes reruns and slow implementations that the budget does not need. `improve` forgets the reruns
of some operators at random, or runs some backward operators by other implementations, repairs and
polishes again, and keeps what is faster.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from headrace.memory.plan.draft import Draft, Evaluator, SimulatedDraft, set_way, way_of, with_way
from headrace.memory.plan.repeats import Block, repeated_blocks, spread
from headrace.memory.plan.stages import Stages

_LEAST_US = 1e-3
"""Time by which a move counts that takes none."""
_TRIED = 12
"""Moves that are simulated in each round of `repair`, those that free most for their time; more
until one helps."""
_CHANGED_SHARE = 0.3
"""Share of the rounds of `improve` that change implementations."""
_EXCHANGED, _EXCHANGED_SHARE, _EXCHANGED_ROUNDS = 6, 0.002, 0.1
"""Exchanges of implementations that are tried, those that save most; the least share of the time
that one saves; share of the rounds of `improve` that begin with one."""
_SPREAD, _SPREAD_ROUNDS = 3, 0.05
"""Blocks whose like all equal ones are made, the fastest; share of the rounds of `improve` that
begin with one."""
_CHANGED = (1, 1, 2, 4, 8, 16)
"""Backward operators, next to each other, that one such round changes."""


@dataclass(slots=True)
class Search:
    """Moves on the drafts of one graph and budget; equal seeds give equal results.

    Attributes
    ----------
    stop : polled between moves; true ends `repair` and `polish` with what they have.
    repeated : equal blocks, class by class.
    """

    stages: Stages
    evaluator: Evaluator
    random: Random
    stop: Callable[[], bool] = lambda: False
    repeated: list[list[Block]] = field(default_factory=list[list[Block]])

    @classmethod
    def of(
        cls,
        stages: Stages,
        budget: int,
        seed: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> "Search":
        """Return a search of its own."""
        repeated = repeated_blocks(stages.graph)
        return cls(stages, Evaluator(stages, budget), Random(seed), stop, repeated)

    def repair(self, trial: SimulatedDraft, noise: float = 0.0) -> SimulatedDraft:
        """Return a draft that fits, or the one with the least excess that moves lead to.

        Parameters
        ----------
        noise : standard deviation of the logarithm by which moves' merits are disturbed.
        """
        while trial.excess and not self.stop():
            best, merit = None, 0.0
            for tried, draft in enumerate(self._moves(trial, noise)):
                if best is not None and tried >= _TRIED:
                    break
                found = self.evaluator.try_(draft)
                if found is None or found.excess >= trial.excess:
                    continue
                gain = trial.excess - found.excess
                value = gain / max(found.time_us - trial.time_us, _LEAST_US)
                value *= self._disturbance(noise)
                if value > merit:
                    best, merit = found, value
            if best is None:
                return trial
            trial = best
        return trial

    def _disturbance(self, noise: float) -> float:
        return float(np.exp(noise * self.random.gauss(0.0, 1.0))) if noise else 1.0

    def _moves(self, trial: SimulatedDraft, noise: float) -> Iterator[Draft]:
        """Yield drafts that may need less at the highest step."""
        peak = trial.found.peak_step
        yield from self._other_ways(trial, peak)
        for storage, step in self._spanning(trial, peak)[:_TRIED]:
            yield from self._not_reading(trial, storage, step)
        ranked = sorted(
            self._splits(trial, peak),
            key=lambda split: (
                -split.freed / max(split.time_us, _LEAST_US) * self._disturbance(noise)
            ),
        )
        for split in ranked:
            yield split.draft()

    def _other_ways(self, trial: SimulatedDraft, step: int) -> Iterator[Draft]:
        """Yield drafts in which the run at a step is by another implementation."""
        stage, operator = int(trial.stage[step]), int(trial.operator[step])
        now = way_of(self.stages, trial.draft, stage, operator)
        for number in range(len(self.stages.ways(operator))):
            if number != now:
                yield with_way(self.stages, trial.draft, stage, operator, number)

    def _spanning(self, trial: SimulatedDraft, step: int) -> list[tuple[int, int]]:
        """Return storages that are there at a step only for later, each with its next reader."""
        found = trial.found
        across = np.flatnonzero((found.first < step) & (found.last > step))
        storages = found.storage[across]
        at = np.searchsorted(found.events, storages * found.span + 2 * step)
        spanning: list[tuple[int, int]] = []
        for storage, place in zip(storages.tolist(), at.tolist(), strict=True):
            if storage not in self.stages.creator or place >= len(found.events):
                continue
            owner, moment = divmod(int(found.events[place]), found.span)
            if owner == storage and not moment & 1 and moment >> 1 > step:
                spanning.append((storage, moment >> 1))
        spanning.sort(key=lambda each: -self.stages.graph.storages[each[0]].nbytes)
        return spanning

    def _splits(self, trial: SimulatedDraft, step: int) -> "Iterator[_Split]":
        """Yield the ways to compute again what is there at a step only for later."""
        for storage, reader in self._spanning(trial, step):
            stage = int(trial.stage[reader])
            if stage:
                split = _Split.of(self.stages, trial, storage, stage)
                if split is not None:
                    yield split

    def _not_reading(self, trial: SimulatedDraft, storage: int, reader: int) -> Iterator[Draft]:
        """Yield drafts in which the next reader of a storage does without it."""
        stages, stage = self.stages, int(trial.stage[reader])
        operator = int(trial.operator[reader])
        for number, way in enumerate(stages.ways(operator)):
            if storage in way.reads:
                continue
            draft = with_way(stages, trial.draft, stage, operator, number)
            for read in way.reads:
                self._make(trial, draft, read, reader)
            yield draft

    def _make(self, trial: SimulatedDraft, draft: Draft, storage: int, reader: int) -> float:
        """Let the last run of a storage's creator before a step create it, in place.

        Returns the microseconds that it takes longer.
        """
        creator = self.stages.creator.get(storage)
        if creator is None:
            return 0.0
        runs = np.flatnonzero(trial.operator[:reader] == creator)
        stage, ways = int(trial.stage[runs[-1]]), self.stages.ways(creator)
        now = way_of(self.stages, draft, stage, creator)
        if storage in ways[now].creates:
            return 0.0
        for number, way in enumerate(ways):
            if storage in way.creates:
                set_way(self.stages, draft, stage, creator, number)
                return way.time_us - ways[now].time_us
        return 0.0

    def polish(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return a draft that fits, too, without reruns and slow ways that it can do without."""
        trial = self._without_unread(trial)
        runs = [
            (self.stages.ways(op)[way].time_us, stage, op)
            for stage, again in enumerate(trial.draft.again)
            for op, way in again.items()
        ]
        for _, stage, operator in sorted(runs, reverse=True):
            if self.stop():
                return trial
            if operator in trial.draft.again[stage]:
                draft = trial.draft.copy()
                del draft.again[stage][operator]
                trial = self._if_better(trial, draft)
        for stage, operator, number in self._faster(trial):
            if self.stop():
                return trial
            trial = self._if_better(
                trial, with_way(self.stages, trial.draft, stage, operator, number)
            )
        return self._without_unread(trial)

    def _faster(self, trial: SimulatedDraft) -> list[tuple[int, int, int]]:
        """Return (stage, operator, implementation) of faster ways to run, the most saved first."""
        found: list[tuple[float, int, int, int]] = []
        for stage, operator, now in trial.draft.steps():
            ways = self.stages.ways(operator)
            for number, way in enumerate(ways):
                if way.time_us < ways[now].time_us:
                    found.append((way.time_us - ways[now].time_us, stage, operator, number))
        return [each[1:] for each in sorted(found)]

    def _if_better(self, trial: SimulatedDraft, draft: Draft) -> SimulatedDraft:
        found = self.evaluator.try_(draft)
        if found is None or found.excess > trial.excess or found.time_us > trial.time_us:
            return trial
        return found

    def _without_unread(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the draft without reruns of which nothing is read."""
        while not self.stop():
            found = trial.found
            read = np.zeros(len(trial.stage), dtype=bool)
            read[found.first[found.last > found.first]] = True
            idle = np.flatnonzero(
                ~read & (trial.stage > 0) & (trial.operator < len(self.stages.forward))
            )
            if not len(idle):
                return trial
            draft = trial.draft.copy()
            for step in idle.tolist():
                del draft.again[int(trial.stage[step])][int(trial.operator[step])]
            after = self.evaluator.try_(draft)
            if after is None or after.excess > trial.excess:
                return trial
            trial = after
        return trial

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
        stop : polled between rounds; true ends them.
        found : called with every faster draft.
        """
        best = current = trial
        for _ in range(rounds):
            if stop():
                break
            start = self.evaluator.try_(self._changed(current))
            if start is None:
                continue
            tried = self.polish(self.repair(start, noise=self.random.choice((0.0, 0.3, 1.0))))
            if tried.excess:
                continue
            if tried.time_us < best.time_us:
                best = tried
                found(best)
            if tried.time_us <= current.time_us or self.random.random() < 0.02:
                current = tried
            elif self.random.random() < 0.05:
                current = best
        return best

    def exchanged(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the best draft with other implementations that are faster together.

        A backward operator that reads what its forward operator does not create yet is changed with
        it, and what is then too much memory is repaired: neither step alone would be taken.
        """
        for draft in self._exchanges(trial)[:_EXCHANGED]:
            start = None if self.stop() else self.evaluator.try_(draft)
            if start is None:
                continue
            tried = self.polish(self.repair(start))
            if not tried.excess and tried.time_us < trial.time_us:
                trial = tried
        return trial

    def _exchanges(self, trial: SimulatedDraft) -> list[Draft]:
        """Return drafts that take less time and may not fit, the fastest first."""
        least = _EXCHANGED_SHARE * trial.time_us
        found: list[tuple[float, int, Draft]] = []
        count = len(self.stages.forward)
        for step in np.flatnonzero(trial.operator >= count).tolist():
            stage, operator = int(trial.stage[step]), int(trial.operator[step])
            ways = self.stages.ways(operator)
            now = trial.draft.backward[stage - 1]
            for number in range(len(ways)):
                if number == now:
                    continue
                draft = with_way(self.stages, trial.draft, stage, operator, number)
                saved = ways[now].time_us - ways[number].time_us
                for read in ways[number].reads:
                    saved -= self._make(trial, draft, read, step)
                if saved > least:
                    found.append((-saved, len(found), draft))
        return [draft for _, _, draft in sorted(found, key=lambda each: each[:2])]

    def spread(self, trial: SimulatedDraft) -> SimulatedDraft:
        """Return the best draft in which equal blocks are like one of them."""
        for blocks in self.repeated:
            drafts = [spread(trial.draft, source, blocks) for source in blocks]
            starts = [None if self.stop() else self.evaluator.try_(draft) for draft in drafts]
            able = [each for each in starts if each is not None]
            able.sort(key=lambda each: (each.excess > 0, each.time_us))
            for start in able[:_SPREAD]:
                if self.stop():
                    break
                tried = self.polish(self.repair(start))
                if not tried.excess and tried.time_us < trial.time_us:
                    trial = tried
        return trial

    def _changed(self, trial: SimulatedDraft) -> Draft:
        """Return a draft without some reruns, or with other implementations."""
        if self.repeated and self.random.random() < _SPREAD_ROUNDS:
            blocks = self.random.choice(self.repeated)
            return spread(trial.draft, self.random.choice(blocks), blocks)
        if self.random.random() < _EXCHANGED_ROUNDS and (drafts := self._exchanges(trial)):
            return self.random.choice(drafts[:_EXCHANGED])
        able = np.flatnonzero([len(self.stages.ways(op)) > 1 for op in trial.operator.tolist()])
        able = able[trial.operator[able] >= len(self.stages.forward)]
        if not len(able) or self.random.random() >= _CHANGED_SHARE:
            return self._forget(trial.draft)
        draft = trial.draft.copy()
        count = min(len(able), self.random.choice(_CHANGED))
        low = self.random.randrange(len(able) - count + 1)
        for step in able[low : low + count].tolist():
            stage, operator = int(trial.stage[step]), int(trial.operator[step])
            number = self.random.randrange(len(self.stages.ways(operator)))
            set_way(self.stages, draft, stage, operator, number)
            for read in self.stages.ways(operator)[number].reads:
                self._make(trial, draft, read, step)
        return draft

    def _forget(self, draft: Draft) -> Draft:
        """Return a draft without the reruns of some operators in some stages."""
        copy, count = draft.copy(), len(self.stages.forward)
        width = max(1, int(count * self.random.choice((0.05, 0.1, 0.2, 0.4))))
        low = self.random.randrange(max(1, count - width + 1))
        share = self.random.choice((0.5, 1.0, 1.0))
        for runs in copy.again:
            for operator in list(runs):
                if low <= operator < low + width and self.random.random() < share:
                    del runs[operator]
        for operator in range(low, min(low + width, count)):
            if self.random.random() < 0.1 and copy.forward[operator]:
                copy.forward[operator] = 0
        return copy


@dataclass(frozen=True, slots=True)
class _Split:
    """A storage that is dropped and computed again in a stage, with the reruns that this takes."""

    base: Draft
    stage: int
    runs: dict[int, int]
    freed: int
    time_us: float

    def draft(self) -> Draft:
        """Return the draft with the reruns."""
        copy = self.base.copy()
        copy.again[self.stage].update(self.runs)
        return copy

    @classmethod
    def of(cls, stages: Stages, trial: SimulatedDraft, storage: int, stage: int) -> "_Split | None":
        """Return the split; None if an operator that may not run again would have to."""
        present, runs = trial.draft.again[stage], dict[int, int]()
        begin = int(np.searchsorted(trial.stage, stage))
        slots = trial.operator[begin : int(np.searchsorted(trial.stage, stage, side="right"))]
        pending = [storage]
        while pending:
            wanted = pending.pop()
            creator = stages.creator[wanted]
            way = creating(stages, creator, wanted, present.get(creator, runs.get(creator)))
            if way is None:
                return None
            if creator in runs or present.get(creator) == way:
                continue
            runs[creator] = way
            at = begin + int(np.searchsorted(slots, creator))
            for read in stages.reads(stages.ways(creator)[way]):
                again = stages.graph.operators[stages.creator[read]].again
                if again and stages.creator[read] not in runs and not _there(trial, read, at):
                    pending.append(read)
        time = sum(stages.ways(operator)[way].time_us for operator, way in runs.items())
        return cls(trial.draft, stage, runs, stages.graph.storages[storage].nbytes, time)


def _there(trial: SimulatedDraft, storage: int, step: int) -> bool:
    """Return whether an instance of a storage is there when a step is inserted."""
    found = trial.found
    low, high = np.searchsorted(found.storage, (storage, storage + 1))
    return bool(((found.first[low:high] < step) & (found.last[low:high] >= step)).any())


def creating(stages: Stages, operator: int, storage: int, now: int | None) -> int | None:
    """Return the implementation by which an operator can run again to create a storage.

    That is `now` if it does, else the fastest that overwrites nothing; None if there is none.
    """
    if not stages.graph.operators[operator].again:
        return None
    ways = stages.ways(operator)
    if now is not None and storage in ways[now].creates:
        return now
    able = [
        number
        for number, way in enumerate(ways)
        if storage in way.creates and way.overwrites is None
    ]
    return min(able, key=lambda number: ways[number].time_us, default=None)
