"""Rank 0's part: watch the steps, and carry out what `decide` says. No threads in here.

`Coordinator.turn` is called now and then, on a thread of its own; what it does to the job goes
through a `Job`, and plans are made by a `Planner` while it goes on watching, so that tests can give
it simulated ones.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from headrace.collectives.adapt.decide import (
    Action,
    Limits,
    Observation,
    Outcome,
    Phase,
    State,
    decide,
)
from headrace.collectives.adapt.finetune import Finetune
from headrace.collectives.adapt.forecast import Forecast
from headrace.collectives.adapt.network import KnownNetwork
from headrace.collectives.adapt.records import Records
from headrace.collectives.adapt.replan import Answer, Request
from headrace.collectives.adapt.retune import FINETUNE, Call, book_masters
from headrace.collectives.adapt.steps import Change, ChangeDetector, StepClock
from headrace.collectives.adapt.traffic import Traffic
from headrace.collectives.adapt.updated import bandwidth
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.two_level import Masters
from headrace.errors import HeadraceError
from headrace.topology import Topology

__all__ = ["Coordinator", "Job", "Planner"]

log = logging.getLogger(__name__)

WORTH = 0.05
"""Another plan has to be predicted this much faster: the simulator is not exact."""

FINETUNE_LOSS = 0.03
"""Finetune goes by measurements, which scatter: not against the simulator by more than this."""

ROUTINE_CHANGE = 0.6
"""What a routine look takes for a change, while steps say nothing: what is less gains little."""

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Job(Protocol):
    """The running job, as rank 0 knows it."""

    @property
    def epoch(self) -> int:
        """Generation of the plan that serves the next call."""
        ...

    def calls(self) -> Sequence[tuple[Hashable, float]]:
        """Return the calls made since this was asked last: ((collective, bytes), seconds)."""
        ...

    def gather(self, *, hurry: bool) -> Traffic | None:
        """Ask all ranks what their connections did since they were last asked.

        None: not all answered in time.

        Parameters
        ----------
        hurry : more questions will follow soon.
        """
        ...

    def swap(self, book: PlanBook) -> int | None:
        """Agree on `book` with all ranks; returns its epoch, or None if they did not."""
        ...

    def probe(self) -> Topology | None:
        """Measure the network between two calls; None if that failed."""
        ...


class Planner(Protocol):
    """Plans in the background (`replan.BackgroundPlanner`)."""

    def begin(self, request: Request) -> None:
        """Ask for plans; what was asked before is forgotten."""
        ...

    def forget(self) -> None:
        """Drop what was asked for."""
        ...

    def poll(self) -> Answer | None:
        """Return the answer; None while there is none."""
        ...


class Coordinator:
    """Adapts one job.

    Parameters
    ----------
    book : what serves the job; its topology is the reference for what changes.
    outdated : called with a reason when the network is no longer as it was measured.

    Attributes
    ----------
    book : the one in force, or agreed on.
    detector : knows how long steps take.
    traffic : what was gathered last.
    steps, step_s : how many there were, and how long the last one took.
    swaps : how many there were, by reason.
    """

    def __init__(
        self,
        job: Job,
        book: PlanBook,
        planner: Planner,
        *,
        outdated: Callable[[str], object] = lambda _reason: None,
        records: Records | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.book = book
        self.records = records or Records()
        self.detector = ChangeDetector()
        self.traffic: Traffic | None = None
        self.steps = 0
        self.step_s: float | None = None
        self.swaps: Counter[str] = Counter()
        self._job = job
        self._planner = planner
        self._outdated = outdated
        self._state = State(limits=limits or Limits())
        self._clock = StepClock()
        self._network = KnownNetwork(book.topology)
        self._forecast = Forecast()
        self._found: dict[str, float] = {}
        self._finetune = Finetune()
        self._masters: Masters | None = None
        self._tried: list[tuple[float, PlanBook]] = []
        self._asked_s = 0.0
        self._awaited: int | None = None
        self._expected_s: float | None = None
        self._scatter = 0.0
        self._window_from_s: float | None = None  # None: it begins with the next turn

    # ---- what others may ask --------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where adaptation is."""
        return self._state.phase

    @property
    def topology(self) -> Topology:
        """The network as far as known now."""
        return self._network.topology

    @property
    def calls(self) -> tuple[Call, ...]:
        """The collectives of one step, as far as a plan book could serve them."""
        return tuple(
            (Collective(key[0]), int(key[1]))
            for key in self._clock.pattern
            if isinstance(key, tuple) and len(key) >= 2 and key[0] in tuple(Collective)
        )

    def predicted_us(self) -> float | None:
        """Return the predicted time of a step's calls with the plan in force, network as known."""
        return self._forecast.calls_us(self.book, self.topology, self.calls)

    # ---- one turn -------------------------------------------------------------------------

    def turn(self, now_s: float) -> float:
        """Do what there is to do; returns after how many seconds to come again."""
        if self._window_from_s is None:
            self._window_from_s = now_s
        change: Change | None = None
        self.detector.recovery = bool(self._network.slow)
        ended = self._clock.feed(self._job.calls())
        for step in ended:
            self.steps += 1
            self.step_s = step.duration_s
            change = self.detector.add(step) or change
        busy = self._planning or self._state.phase is Phase.DIAGNOSING
        if not ended and not busy and self._awaited is None:
            return self._pause_s()  # nothing is new
        if self._awaited is not None:
            if self._job.epoch < self._awaited:
                return self._pause_s()
            self._in_force()
            change = None
        self._note(change)
        seen = self._observe(now_s, change=change, outcome=self._planned())
        while True:
            before = self._state.phase
            self._state, action = decide(self._state, seen)
            if action is Action.WAIT:
                return self._pause_s()
            self._planner.forget()
            try:
                result = self._do(action, before)
            except HeadraceError as error:
                log.warning("adaptation: %s failed: %s", action, error)
                self.records.add("failed", action=action, error=str(error))
                result = {"outcome": Outcome.FAILED}
            if result is None:
                return self._pause_s()
            seen = self._observe(now_s, **result)

    @property
    def _planning(self) -> bool:
        return self._state.phase in (Phase.PLANNING, Phase.FINETUNING)

    def _pause_s(self) -> float:
        if self._planning or self._window_from_s is None:
            return _SHORTEST_PAUSE_S
        step = self.detector.latest_s or _LONGEST_PAUSE_S
        return min(max(step / 4, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def _observe(self, now_s: float, **more: Any) -> Observation:
        return Observation(
            now_s=now_s,
            window_s=0.0 if self._window_from_s is None else now_s - self._window_from_s,
            steps=self.detector.steps,
            step_s=self.detector.latest_s,
            reference_s=self.detector.reference_s,
            scatter=self._scatter,
            suspect=self.detector.suspects,
            expected_s=self._forecast.step_s(self.predicted_us()),
            altered=bool(self._network.rates.factors),
            tunable=self._masters is not None,
            **more,
        )

    def _note(self, change: Change | None) -> None:
        """Note what steps take, and their calls are predicted to, before adaptation sets off."""
        if self._state.phase is Phase.WATCHING:
            step_s = self.detector.reference_s if change is None else change.before_s
            self._forecast.start_from(step_s, self.predicted_us())
            if change is None:
                self._scatter = self.detector.scatter
        if change is not None:
            self._tried = [(change.after_s, self.book)]
            self.records.add("change", before_s=change.before_s, after_s=change.after_s)

    # ---- what decide() asks for -----------------------------------------------------------

    def _do(self, action: Action, phase: Phase) -> dict[str, Any] | None:
        """Do it; returns what is to be told of it now, None if there is nothing."""
        match action:
            case Action.LOOK:
                return {"found": self._look()}
            case Action.RESET:
                self._gather(hurry=True)
            case Action.ACCEPT:
                self._accept(phase)
            case Action.PLAN:
                self._plan()
            case Action.FINETUNE:
                return self._finetuned()
            case Action.REVERT:
                return {"outcome": self._revert()}
            case Action.PROBE:
                return {"outcome": self._probe()}
            case Action.WAIT:
                pass
        return None

    def _gather(self, *, hurry: bool) -> Traffic | None:
        self._window_from_s = None
        self.traffic = self._job.gather(hurry=hurry)
        return self.traffic

    def _look(self) -> dict[str, float] | None:
        """Say by what factor ports have changed."""
        routine = self._state.phase is Phase.WATCHING
        traffic = self._gather(hurry=not routine)
        if traffic is None:
            return None
        change = self._state.change
        slower = None if change is None else change.slower
        found = self._network.changes(traffic, slower=slower)
        self._found = self._worth_a_plan(found) if routine else found
        if self._found:
            self.records.add("look", found=self._found, phase=self._state.phase)
        return self._found

    def _worth_a_plan(self, found: dict[str, float]) -> dict[str, float]:
        """What counts while steps do not say that anything changed.

        That is large changes, and slow ports that get faster at all.
        """
        return {
            name: factor
            for name, factor in found.items()
            if max(factor, 1 / factor) > 1 + ROUTINE_CHANGE
            or (factor > 1 and name in self._network.slow)
        }

    def _accept(self, phase: Phase) -> None:
        """Compare with the present from now on: with more of the same, or with it alone."""
        if phase is not Phase.WATCHING:
            self.records.add(
                "settled",
                phase=phase,
                step_s=self.detector.latest_s,
                expected_s=self._forecast.step_s(self.predicted_us()),
            )
            if self._network.rates.factors:
                self._outdated(self._network.rates.described())
            self._network.settle()
            self._tried = []
            enough = self.detector.steps >= self._state.limits.settle_steps
            if self._gather(hurry=False) is None or not enough or self._network.settled:
                return
        if self.traffic is not None:
            self._network.normal(self.traffic)

    def _plan(self) -> None:
        self._network.believe(self._found)
        log.info("the network has changed: %s", self._network.rates.described())
        self.records.add("plan", network=dict(self._network.rates.factors))
        self._finetune = Finetune()
        self._ask(None)

    def _finetuned(self) -> dict[str, Any] | None:
        traffic = self._gather(hurry=True)
        if self._masters is None or traffic is None:
            return {"outcome": Outcome.KEPT}
        self._found = self._worth_a_plan(self._network.changes(traffic))
        if self._found:
            self.records.add("look", found=self._found, phase=self._state.phase)
            return {"found": self._found}
        self._network.normal(traffic)
        rates = bandwidth(self.topology, traffic.rate_bytes_per_s)
        sent = traffic.sent_bytes / max(1, self.detector.steps)
        better = self._finetune.step(self._masters, sent, rates, traffic.rtt_us)
        if better is None:
            return {"outcome": Outcome.KEPT}
        self._ask(better)
        return None

    def _revert(self) -> Outcome:
        step_s, best = min(self._tried, key=lambda each: each[0], default=(None, self.book))
        if best.digest == self.book.digest:
            return Outcome.KEPT
        return self._swap("revert", best, step_s)

    def _probe(self) -> Outcome:
        began = time.monotonic()
        facts = {
            "step_s": self.detector.latest_s,
            "expected_s": self._forecast.step_s(self.predicted_us()),
        }
        topology = self._job.probe()
        self.records.add("probe", took_s=round(time.monotonic() - began, 3), **facts)
        if topology is None:
            return Outcome.FAILED
        self._network.measured(topology)
        self._found = {}
        self.detector.restart()
        self._outdated("it was measured again")
        return Outcome.MEASURED

    # ---- planning and swapping ------------------------------------------------------------

    def _ask(self, masters: Masters | None) -> None:
        self._asked_s = time.monotonic()
        self._planner.begin(
            Request(topology=self.topology, book=self.book, calls=self.calls, masters=masters)
        )

    def _planned(self) -> Outcome | None:
        """Swap to what has been planned, if it is better; None: nothing has."""
        answer = self._planner.poll() if self._planning else None
        if answer is None:
            return None
        tuning = self._state.phase is Phase.FINETUNING
        took_s = round(time.monotonic() - self._asked_s, 3)
        if answer.book is None:
            log.warning("planning anew failed: %s", answer.error)
            self.records.add("failed", error=answer.error, took_s=took_s)
            return Outcome.FAILED
        facts: dict[str, Any] = {
            "network": dict(self._network.rates.factors),
            "predicted_gain": answer.gain,
            "plans": answer.plans,
            "planned_in_s": took_s,
        }
        why = FINETUNE if tuning else answer.why
        if answer.gain < (-FINETUNE_LOSS if tuning else WORTH):
            self.records.add("kept", why=why, **facts)
            return Outcome.KEPT
        # Finetune moves little: what steps take now is what they will take, within limits
        return self._swap(why, answer.book, self.detector.latest_s if tuning else None, **facts)

    def _swap(self, why: str, book: PlanBook, step_s: float | None, **facts: Any) -> Outcome:
        """Swap to `book`, with which steps take `step_s`, if that is known."""
        if self.detector.latest_s is not None and self.detector.steps >= 2:
            self._tried.append((self.detector.latest_s, self.book))
        facts |= {"step_s": self.detector.latest_s, "best_s": self._state.best_s}
        began = time.monotonic()
        try:
            epoch = self._job.swap(book)
        except HeadraceError as error:
            log.warning("changing plans failed: %s", error)
            epoch = None
        facts["agreed_in_s"] = round(time.monotonic() - began, 3)
        if epoch is None:
            self.records.add("refused", why=why, **facts)
            return Outcome.FAILED
        self._network.under(self.book.digest, book.digest, alike=why == FINETUNE)
        self._awaited, self._expected_s, self.book = epoch, step_s, book
        self._masters = self._movable()
        self.swaps[why] += 1
        self.records.add("swap", why=why, epoch=epoch, book=book.digest[:12], **facts)
        log.info("swap to plan %d (%s)", epoch, why)
        return Outcome.SWAPPED

    def _movable(self) -> Masters | None:
        """The masters of the plan that moves most bytes, if it has any."""
        sizes = Counter(size for name, size in self.calls if name is Collective.ALLREDUCE)
        return book_masters(self.book, sizes, spread=False)

    def _in_force(self) -> None:
        """The first call was served by the new plan."""
        self._awaited = None
        self.detector.restart(self._expected_s)
        self._gather(hurry=True)
        self.records.add("in_force", epoch=self._job.epoch)
