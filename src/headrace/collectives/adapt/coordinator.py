"""Rank 0's control loop: watch the steps, and carry out the actions of `decide`. No threads here.

`AdaptationCoordinator.turn` is called periodically, on a thread of its own. It acts on the job
through a `Job` only, and a `Planner` plans in the background; tests pass simulated ones.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from headrace.collectives.adapt.act.background import RebookRequest, Response
from headrace.collectives.adapt.act.finetune import Finetune
from headrace.collectives.adapt.act.forecast import Forecast
from headrace.collectives.adapt.act.rebook import FINETUNE, Call, book_masters
from headrace.collectives.adapt.observe.network import KnownNetwork
from headrace.collectives.adapt.observe.port_changes import bandwidth
from headrace.collectives.adapt.observe.traffic import Traffic
from headrace.collectives.adapt.policy import (
    Action,
    ActionOutcome,
    AdaptationPhase,
    AdaptationState,
    Limits,
    Observation,
    decide,
)
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.generators.templates.two_level.masters import Masters
from headrace.errors import HeadraceError
from headrace.job.records import Records
from headrace.job.steps import CHANGED, Change, ChangeDetector, StepClock
from headrace.topology import Topology

log = logging.getLogger(__name__)

MIN_GAIN = 0.05
"""Least predicted gain of another plan: the simulator is not exact."""

FINETUNE_LOSS = 0.03
"""Largest predicted loss allowed for a step of Finetune: its measurements scatter."""

ROUTINE_CHANGE = 0.6
"""Least change of a port that a routine look counts while steps are steady: less gains little."""

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Job(Protocol):
    """The running job, as seen from rank 0."""

    @property
    def epoch(self) -> int:
        """Generation of the plan in force for the next call."""
        ...

    def calls(self) -> Sequence[tuple[Hashable, float]]:
        """Return the calls since the last time: ((collective, bytes), seconds)."""
        ...

    def gather(self, *, hurry: bool) -> Traffic | None:
        """Gather all ranks' connection statistics since the last time.

        None: not all ranks reported in time.

        Parameters
        ----------
        hurry : more requests will follow soon.
        """
        ...

    def swap(self, book: PlanBook) -> int | None:
        """Commit `book` at all ranks; return its epoch, or None if that was aborted."""
        ...

    def probe(self) -> Topology | None:
        """Measure the network between two calls; None if that failed."""
        ...


class Planner(Protocol):
    """Plans in the background (`act.background.BackgroundPlanner`)."""

    def begin(self, request: RebookRequest) -> None:
        """Submit a request for plans; one submitted before is cancelled."""
        ...

    def cancel(self) -> None:
        """Cancel the request."""
        ...

    def poll(self) -> Response | None:
        """Return the response; None while there is none."""
        ...


class AdaptationCoordinator:
    """Adapt one job to its network.

    Parameters
    ----------
    book : plans of the job; its topology is the reference for changes.
    outdated : called with a reason when the network differs from the measured one.

    Attributes
    ----------
    book : the one in force, or agreed on.
    detector : step times and their changes.
    traffic : statistics gathered last.
    steps, step_s : number of steps, and time of the latest.
    swaps : number of swaps, by reason.
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
        self._state = AdaptationState(limits=limits or Limits())
        self._clock = StepClock()
        self._network = KnownNetwork(book.topology)
        self._forecast = Forecast()
        self._found: dict[str, float] = {}
        self._finetune = Finetune()
        self._masters: Masters | None = None
        self._tried: list[tuple[float, PlanBook]] = []
        self._requested_s = 0.0
        self._awaited: int | None = None
        self._expected_s: float | None = None
        self._scatter = 0.0
        self._window_from_s: float | None = None  # None: it begins with the next turn

    # ---- state ----------------------------------------------------------------------------

    @property
    def phase(self) -> AdaptationPhase:
        """Phase of adaptation."""
        return self._state.phase

    @property
    def topology(self) -> Topology:
        """Present estimate of the network."""
        return self._network.topology

    @property
    def calls(self) -> tuple[Call, ...]:
        """The collectives of one step that a plan book may have plans for."""
        return tuple(
            (Collective(key[0]), int(key[1]))
            for key in self._clock.pattern
            if isinstance(key, tuple) and len(key) >= 2 and key[0] in tuple(Collective)
        )

    def predicted_us(self) -> float | None:
        """Return the predicted time of a step's calls: plan in force, network as estimated."""
        return self._forecast.calls_us(self.book, self.topology, self.calls)

    # ---- one turn -------------------------------------------------------------------------

    def turn(self, now_s: float) -> float:
        """Advance adaptation; return the seconds until the next turn is due."""
        if self._window_from_s is None:
            self._window_from_s = now_s
        change: Change | None = None
        self.detector.recovery = bool(self._network.slow)
        calls = self._job.calls()
        ended = self._clock.feed(calls)
        for step in ended:
            self.steps += 1
            self.step_s = step.duration_s
            change = self.detector.add(step) or change
        if any(key == CHANGED for key, _ in calls):
            change = None
            self._start_anew()
        busy = self._planning or self._state.phase is AdaptationPhase.DIAGNOSING
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
            self._planner.cancel()
            try:
                result = self._do(action, before)
            except HeadraceError as error:
                log.warning("adaptation: %s failed: %s", action, error)
                self.records.add("failed", action=action, error=str(error))
                result = {"outcome": ActionOutcome.FAILED}
            if result is None:
                return self._pause_s()
            seen = self._observe(now_s, **result)

    def _start_anew(self) -> None:
        """Drop what steps of another kind were compared with; a diagnosis under way keeps rates."""
        self.records.add("announced", phase=self.phase)
        self._forecast, self._tried = Forecast(), []
        self._state = replace(self._state, began_s=None, best_s=None)
        if self.phase is AdaptationPhase.WATCHING:
            self._state = AdaptationState(limits=self._state.limits, probed_s=self._state.probed_s)
            self._network.restart()
            self._gather(hurry=True)

    @property
    def _planning(self) -> bool:
        return self._state.phase in (AdaptationPhase.PLANNING, AdaptationPhase.FINETUNING)

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
        """Record the time of steps, and the prediction for it, before adaptation sets off."""
        if self._state.phase is AdaptationPhase.WATCHING:
            step_s = self.detector.reference_s if change is None else change.before_s
            self._forecast.start_from(step_s, self.predicted_us())
            if change is None:
                self._scatter = self.detector.scatter
        if change is not None:
            self._tried = [(change.after_s, self.book)]
            self.records.add("change", before_s=change.before_s, after_s=change.after_s)

    # ---- actions of decide() --------------------------------------------------------------

    def _do(self, action: Action, phase: AdaptationPhase) -> dict[str, Any] | None:
        """Carry out `action`; return its immediate result for `Observation`, None if none."""
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
        """Return by what factor ports have changed; None on timeout."""
        routine = self._state.phase is AdaptationPhase.WATCHING
        traffic = self._gather(hurry=not routine)
        if traffic is None:
            return None
        change = self._state.change
        slower = None if change is None else change.slower
        changes = self._network.changes(traffic, slower=slower)
        self._found = self._significant(changes) if routine else changes
        if self._found:
            self.records.add("look", found=self._found, phase=self._state.phase)
        return self._found

    def _significant(self, changes: dict[str, float]) -> dict[str, float]:
        """Return the changes that count while step times are steady.

        These are large changes, and slow ports that get faster at all.
        """
        return {
            name: factor
            for name, factor in changes.items()
            if max(factor, 1 / factor) > 1 + ROUTINE_CHANGE
            or (factor > 1 and name in self._network.slow)
        }

    def _accept(self, phase: AdaptationPhase) -> None:
        """Take present traffic as the baseline: add to it, or start a new one."""
        if phase is not AdaptationPhase.WATCHING:
            self.records.add(
                "settled",
                phase=phase,
                step_s=self.detector.latest_s,
                expected_s=self._forecast.step_s(self.predicted_us()),
            )
            if self._network.rates.factors:
                self._outdated(self._network.rates.described())
            self._network.accept()
            self._tried = []
            enough = self.detector.steps >= self._state.limits.judge_steps
            if self._gather(hurry=False) is None or not enough or self._network.has_baseline:
                return
        if self.traffic is not None:
            self._network.add_baseline(self.traffic)

    def _plan(self) -> None:
        self._network.update(self._found)
        log.info("the network has changed: %s", self._network.rates.described())
        self.records.add("plan", network=dict(self._network.rates.factors))
        self._finetune = Finetune()
        self._request(None)

    def _finetuned(self) -> dict[str, Any] | None:
        traffic = self._gather(hurry=True)
        if self._masters is None or traffic is None:
            return {"outcome": ActionOutcome.KEPT}
        self._found = self._significant(self._network.changes(traffic))
        if self._found:
            self.records.add("look", found=self._found, phase=self._state.phase)
            return {"found": self._found}
        self._network.add_baseline(traffic)
        rates = bandwidth(self.topology, traffic.rate_bytes_per_s)
        sent = traffic.sent_bytes / max(1, self.detector.steps)
        better = self._finetune.step(self._masters, sent, rates, traffic.rtt_us)
        if better is None:
            return {"outcome": ActionOutcome.KEPT}
        self._request(better)
        return None

    def _revert(self) -> ActionOutcome:
        step_s, best = min(self._tried, key=lambda trial: trial[0], default=(None, self.book))
        if best.digest == self.book.digest:
            return ActionOutcome.KEPT
        return self._swap("revert", best, step_s)

    def _probe(self) -> ActionOutcome:
        began = time.monotonic()
        facts = {
            "step_s": self.detector.latest_s,
            "expected_s": self._forecast.step_s(self.predicted_us()),
        }
        topology = self._job.probe()
        self.records.add("probe", took_s=round(time.monotonic() - began, 3), **facts)
        if topology is None:
            return ActionOutcome.FAILED
        self._network.measured(topology)
        self._found = {}
        self.detector.restart()
        self._outdated("it was measured again")
        return ActionOutcome.MEASURED

    # ---- planning and swapping ------------------------------------------------------------

    def _request(self, masters: Masters | None) -> None:
        self._requested_s = time.monotonic()
        self._planner.begin(
            RebookRequest(topology=self.topology, book=self.book, calls=self.calls, masters=masters)
        )

    def _planned(self) -> ActionOutcome | None:
        """Swap to the new plan if it is better; None: there is none yet."""
        response = self._planner.poll() if self._planning else None
        if response is None:
            return None
        tuning = self._state.phase is AdaptationPhase.FINETUNING
        took_s = round(time.monotonic() - self._requested_s, 3)
        if response.book is None:
            log.warning("replanning failed: %s", response.error)
            self.records.add("failed", error=response.error, took_s=took_s)
            return ActionOutcome.FAILED
        facts: dict[str, Any] = {
            "network": dict(self._network.rates.factors),
            "predicted_gain": response.gain,
            "plans": response.plans,
            "planned_in_s": took_s,
        }
        why = FINETUNE if tuning else response.why
        if response.gain < (-FINETUNE_LOSS if tuning else MIN_GAIN):
            self.records.add("kept", why=why, **facts)
            return ActionOutcome.KEPT
        # Finetune moves little: steps will take about as long as now
        return self._swap(why, response.book, self.detector.latest_s if tuning else None, **facts)

    def _swap(self, why: str, book: PlanBook, step_s: float | None, **facts: Any) -> ActionOutcome:
        """Swap to `book`, with which steps take `step_s` (None: unknown)."""
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
            return ActionOutcome.FAILED
        self._network.switch_plan(self.book.digest, book.digest, alike=why == FINETUNE)
        self._awaited, self._expected_s, self.book = epoch, step_s, book
        self._masters = self._movable()
        self.swaps[why] += 1
        self.records.add("swap", why=why, epoch=epoch, book=book.digest[:12], **facts)
        log.info("swap to plan %d (%s)", epoch, why)
        return ActionOutcome.SWAPPED

    def _movable(self) -> Masters | None:
        """The masters of the plan that moves most bytes, if it has any."""
        sizes = Counter(size for name, size in self.calls if name is Collective.ALLREDUCE)
        return book_masters(self.book, sizes, spread=False)

    def _in_force(self) -> None:
        """Note that the first call ran by the new plan."""
        self._awaited = None
        self.detector.restart(self._expected_s)
        self._gather(hurry=True)
        self.records.add("in_force", epoch=self._job.epoch)
