"""Rank 0's part: watch the steps, and carry out what `decide` says. No threads in here.

`Coordinator.turn` is called now and then, on a thread of its own; what it does to the job goes
through a `Job`, so that tests can give it a simulated one.
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
from headrace.collectives.adapt.quicktune import quicktune
from headrace.collectives.adapt.records import Records
from headrace.collectives.adapt.retune import Call, Retuned, book_masters, calls_us, retune
from headrace.collectives.adapt.steps import Change, ChangeDetector, StepClock
from headrace.collectives.adapt.traffic import Traffic, typical_rates
from headrace.collectives.adapt.updated import PortRates, bandwidth, explain
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.two_level import Masters
from headrace.errors import HeadraceError
from headrace.topology import Topology

__all__ = ["Coordinator", "Job"]

log = logging.getLogger(__name__)

WORTH = 0.05
"""A plan of another kind has to be predicted this much faster: the simulator is not exact."""

TUNING_WORTH = 0.02
"""Masters that move within a plan of the same kind: there predictions compare better."""

FINETUNE_LOSS = 0.03
"""Finetune goes by measurements, which scatter: not against the simulator by more than this."""

_WINDOWS = 5
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0

Planner = Callable[[Topology, PlanBook, Sequence[Call]], PlanBook | None]
"""Plans calls anew for a topology, with the groups of a book; None: it failed or was ended."""


class Job(Protocol):
    """The running job, as rank 0 knows it."""

    @property
    def epoch(self) -> int:
        """Generation of the plan that serves the next call."""
        ...

    def calls(self) -> Sequence[tuple[Hashable, float]]:
        """Return the calls made since this was asked last: ((collective, bytes), seconds)."""
        ...

    def gather(self) -> Traffic | None:
        """Ask all ranks what their connections did since they were last asked.

        None: not all answered in time.
        """
        ...

    def swap(self, book: PlanBook) -> int | None:
        """Agree on `book` with all ranks; returns its epoch, or None if they did not."""
        ...

    def probe(self) -> Topology | None:
        """Measure the network between two calls; None if that failed."""
        ...


class Coordinator:
    """Adapts one job.

    Parameters
    ----------
    book : what serves the job; its topology is the reference for what changes.
    planner : for plans that moving masters cannot reach.
    outdated : called with a reason when the network is no longer as it was measured.

    Attributes
    ----------
    book : the one in force, or agreed on.
    topology : the network as far as known now.
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
        self._reference = self.topology = book.topology
        self._ports = PortRates()
        self._windows: list[Traffic] = []
        self._found: dict[str, float] = {}
        self._finetune = Finetune()
        self._masters: Masters | None = None
        self._tried: list[tuple[float, PlanBook]] = []
        self._awaited: int | None = None
        self._before: tuple[float, float] | None = None
        self._predicted: tuple[str, dict[tuple[str, int], float]] = ("", {})

    # ---- what others may ask --------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where adaptation is."""
        return self._state.phase

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
        return self._calls_us(self.book)

    # ---- one turn -------------------------------------------------------------------------

    def turn(self, now_s: float) -> float:
        """Do what there is to do; returns after how many seconds to come again."""
        change: Change | None = None
        for step in self._clock.feed(self._job.calls()):
            self.steps += 1
            self.step_s = step.duration_s
            change = self.detector.add(step) or change
        if self._awaited is not None:
            if self._job.epoch < self._awaited:
                return self._pause_s()
            self._in_force()
            change = None
        seen = self._observe(now_s, change)
        while True:
            before = self._state.phase
            self._remember(seen)
            self._state, action = decide(self._state, seen)
            if action is Action.WAIT:
                return self._pause_s()
            outcome, found = self._do(action, before)
            if self._awaited is not None:
                self._state, _ = decide(self._state, self._observe(now_s, None, outcome=outcome))
                return self._pause_s()
            if action in (Action.RESET, Action.ACCEPT):
                return self._pause_s()
            seen = self._observe(now_s, None, outcome=outcome, found=found)

    def _pause_s(self) -> float:
        step = self.detector.latest_s or _LONGEST_PAUSE_S
        return min(max(step / 2, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def _observe(self, now_s: float, change: Change | None, **more: Any) -> Observation:
        return Observation(
            now_s=now_s,
            steps=self.detector.steps,
            step_s=self.detector.latest_s,
            suspect=self.detector.suspects,
            change=change,
            expected_s=self._expected_s(),
            altered=bool(self._ports.factors),
            **more,
        )

    def _remember(self, seen: Observation) -> None:
        """Note what steps and their calls took before adaptation sets off."""
        if self._state.phase is not Phase.WATCHING:
            return
        step_s = self.detector.reference_s if seen.change is None else seen.change.before_s
        calls_us = self._calls_us(self.book)
        if step_s is not None and calls_us is not None:
            self._before = (step_s, calls_us / 1e6)
        if seen.change is not None:
            self._tried = [(seen.change.after_s, self.book)]
            self.records.add("change", before_s=seen.change.before_s, after_s=seen.change.after_s)

    def _expected_s(self) -> float | None:
        """How long a step should take now: its calls as predicted, the rest as before.

        Calls may overlap one another and computing: then they counted for less than predicted.
        """
        calls_us = self._calls_us(self.book)
        if self._before is None or calls_us is None:
            return None
        step_s, calls_s = self._before
        return max(0.0, step_s - calls_s) + calls_us / 1e6 * min(1.0, step_s / calls_s)

    def _calls_us(self, book: PlanBook) -> float | None:
        topology = self.topology
        if self._predicted[0] != topology.digest:
            self._predicted = (topology.digest, {})
        return calls_us(book, topology, self.calls, self._predicted[1]) if self.calls else None

    # ---- what decide() asks for -----------------------------------------------------------

    def _do(self, action: Action, phase: Phase) -> tuple[Outcome | None, dict[str, float] | None]:
        began, used = time.monotonic(), time.thread_time()
        try:
            return self._done(action, phase)
        except HeadraceError as error:
            log.warning("adaptation: %s failed: %s", action, error)
            self.records.add("failed", action=action, error=str(error))
            return Outcome.FAILED, None
        finally:
            took_s, cpu_s = time.monotonic() - began, time.thread_time() - used
            if action not in (Action.RESET, Action.LOOK, Action.ACCEPT):
                self.records.add(
                    "did", action=action, took_s=round(took_s, 3), cpu_s=round(cpu_s, 3)
                )

    def _done(self, action: Action, phase: Phase) -> tuple[Outcome | None, dict[str, float] | None]:
        match action:
            case Action.LOOK:
                return None, self._look()
            case Action.RESET:
                self._gather()
            case Action.ACCEPT:
                self._accept(phase)
            case Action.QUICKTUNE:
                return self._quicktune(), None
            case Action.FINETUNE:
                return self._finetune_once(), None
            case Action.REPLAN:
                return self._replan(), None
            case Action.REVERT:
                return self._revert(), None
            case Action.PROBE:
                return self._probe(), None
            case Action.WAIT:
                pass
        return None, None

    def _gather(self) -> Traffic | None:
        self.traffic = self._job.gather()
        return self.traffic

    def _look(self) -> dict[str, float] | None:
        """Say by what factor ports have changed since the reference."""
        traffic = self._gather()
        if traffic is None:
            return None
        if not self._windows:  # nothing to compare with: not even that nothing has changed
            return {} if self._state.phase is Phase.WATCHING else None
        self._found = explain(
            self._reference,
            typical_rates(self._windows),
            traffic.rate_bytes_per_s,
            traffic.sent_bytes,
        )
        if self._found:
            self.records.add("look", found=self._found)
        return self._found

    def _accept(self, phase: Phase) -> None:
        """Compare with the present from now on: with more of the same, or with it alone."""
        if phase is not Phase.WATCHING:
            self.records.add("settled", step_s=self.detector.latest_s, phase=phase)
            if self._ports.factors:
                self._outdated(self._ports.described())
            self._windows.clear()
            if self._gather() is None or self.detector.steps < self._state.limits.settle_steps:
                return
        if self.traffic is not None:
            self._windows = [*self._windows[1 - _WINDOWS :], self.traffic]

    def _quicktune(self) -> Outcome:
        # faster, and no port says why: as measured, that is
        self._ports = self._ports.changed(self._found) if self._found else PortRates()
        self.topology = self._ports.apply(self._reference)
        log.info("the network has changed: %s", self._ports.described())
        self._finetune = Finetune()
        masters = book_masters(self.book, self._sizes())
        if masters is None:
            return Outcome.KEPT
        self._masters = quicktune(masters, bandwidth(self.topology))
        made = retune(self.book, self.topology, self._masters, self._sizes())
        return self._swap("quicktune", made.book, made.gain, made)

    def _finetune_once(self) -> Outcome:
        traffic = self._gather()
        if self._masters is None or traffic is None:
            return Outcome.KEPT
        rates = bandwidth(self.topology, traffic.rate_bytes_per_s)
        sent = traffic.sent_bytes / max(1, self.detector.steps)
        better = self._finetune.step(self._masters, sent, rates, traffic.rtt_us)
        if better is None:
            return Outcome.KEPT
        made = retune(self.book, self.topology, better, self._sizes(), force=True)
        if made.gain < -FINETUNE_LOSS:
            self.records.add("kept", why="finetune", predicted_gain=made.gain)
            return Outcome.KEPT
        self._masters = better
        return self._swap("finetune", made.book, None, made)

    def _replan(self) -> Outcome:
        calls = sorted(set(self.calls))
        now_us = self._calls_us(self.book)
        if not calls or now_us is None:
            return Outcome.KEPT
        book = self._planner(self.topology, self.book, calls)
        if book is None:
            return Outcome.FAILED
        new_us = self._calls_us(book)
        return self._swap("replan", book, 0.0 if new_us is None else 1 - new_us / now_us)

    def _revert(self) -> Outcome:
        best = min(self._tried, key=lambda each: each[0])[1] if self._tried else self.book
        if best.digest == self.book.digest:
            return Outcome.KEPT
        return self._swap("revert", best, None)

    def _probe(self) -> Outcome:
        self.records.add("probe")
        topology = self._job.probe()
        if topology is None:
            return Outcome.FAILED
        self._reference = self.topology = topology
        self._ports = PortRates()
        self._windows.clear()
        self.detector.restart()
        self._outdated("it was measured again")
        return Outcome.MEASURED

    def _sizes(self) -> Counter[int]:
        return Counter(size for name, size in self.calls if name is Collective.ALLREDUCE)

    # ---- swapping -------------------------------------------------------------------------

    def _swap(
        self, why: str, book: PlanBook, gain: float | None, made: Retuned | None = None
    ) -> Outcome:
        """Swap to `book` if it is predicted to gain enough (None: whatever is predicted)."""
        facts: dict[str, Any] = {"network": dict(self._ports.factors), "predicted_gain": gain}
        if made is not None:
            facts["plans"] = [
                [each.total_bytes, each.before, each.before_us, each.after, each.after_us]
                for each in made.moved
            ]
        if gain is not None and gain < (WORTH if made is None else TUNING_WORTH):
            self.records.add("kept", why=why, **facts)
            return Outcome.KEPT
        if self.detector.latest_s is not None and self.detector.steps >= 2:
            self._tried.append((self.detector.latest_s, self.book))
        began = time.monotonic()
        epoch = self._job.swap(book)
        facts["agreed_in_s"] = round(time.monotonic() - began, 3)
        if epoch is None:
            self.records.add("refused", why=why, **facts)
            return Outcome.FAILED
        self._awaited, self.book = epoch, book
        self.swaps[why] += 1
        self.records.add("swap", why=why, epoch=epoch, book=book.digest[:12], **facts)
        log.info("swap to plan %d (%s)", epoch, why)
        return Outcome.SWAPPED

    def _in_force(self) -> None:
        """The first call was served by the new plan: what was seen of the old one is no guide."""
        self._awaited = None
        self.detector.restart()
        self._windows.clear()
        self._gather()
        self.records.add("in_force", epoch=self._job.epoch)
