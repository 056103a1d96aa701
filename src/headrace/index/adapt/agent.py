"""`IndexAdaptation`: a thread that follows an index, plans anew and converts beside its users.

The index's lock is held for slices of a conversion only (`_SLICE_S` or `_BATCHED_SLICE_S` each),
for a look (some microseconds), and for slices of the reading of its keys ahead of a recording.
"""

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from headrace import _native
from headrace.errors import HeadraceError
from headrace.facades import offered_by
from headrace.forks import ForkMark
from headrace.index.adapt.decide import (
    SeenActivity,
    TuningAction,
    TuningLimits,
    TuningOutcome,
    TuningState,
    decide,
)
from headrace.index.adapt.observe import ActivityObserver
from headrace.index.adapt.planner import PlannerProcess
from headrace.index.adapt.propose import ConfigurationProposer, Proposal
from headrace.index.adapt.workload import SeenWorkload, key_distance, mix_distance
from headrace.index.configuration import Configuration
from headrace.index.errors import TraceError
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.index import Index
from headrace.index.run.recorder import SelectedKeys, TraceRecorder, halvings_for
from headrace.index.trace import OPERATIONS, Trace
from headrace.job.records import Records

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Seconds between looks: two confirm a change, which is to be followed within two seconds."""

_RECORDED_KEYS, _RECORDED = 700_000, 1 << 17
"""Keys of a recording, and its operations, about: trials on few keys run in caches, and choose for
a smaller index than this one."""

_RECORD_S = (0.02, 0.25)
"""Least and longest time of a recording."""

_SLICE_S, _BATCHED_SLICE_S = 3e-4, 8e-4
_SHARE = 0.75
"""Aim of a slice of conversion, that where users' calls are batches, which take about as long and
are waited for in each slice; and the share of the time that slices take."""

_REREAD = 1.5
_FIRST_SHARE, _READ_SHARE = 0.5, 0.25
"""Growth of an index, or its shrinking, after which the sample of its keys is read again, ahead of
the next recording; and the share of the time that reading takes, the first time and later."""

MIN_GAIN = 1.1
"""Gain below which an index is left as it is: trials differ by some percent from run to run, and a
conversion takes as much time as hundreds of thousands of operations."""

_CLOSE_S = 30.0

_adaptations = weakref.WeakSet["IndexAdaptation"]()


@offered_by("headrace.index")
class IndexAdaptation:
    """Adaptation of one index, until `close`; or as a context.

    It belongs to the process that made it: in a child that is forked since, `step` is refused, and
    `close` has no effect. The child's copy of the index is an index without adaptation.

    Parameters
    ----------
    index : used from other threads meanwhile.
    proposer : plans a recorded workload; default: the throughput model and trials, in a process
        that is started for it.
    most_bytes_per_key : cap of memory for the default proposer.
    limits : policy.
    log_path : file that events are appended to, as lines of JSON.
    look_s : seconds between looks.
    start : whether a thread is started; else `step` is called.

    Attributes
    ----------
    records : events, the latest last; see docs/index.md.
    conversions : that were completed.
    longest_slice_s : the longest time that a conversion held the index's lock at once.
    """

    def __init__(
        self,
        index: Index,
        *,
        proposer: ConfigurationProposer | None = None,
        most_bytes_per_key: float | None = None,
        limits: TuningLimits | None = None,
        log_path: Path | None = None,
        look_s: float = LOOK_S,
        start: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index
        self.records = Records(log_path)
        self.conversions = 0
        self.longest_slice_s = 0.0
        self.workload: SeenWorkload | None = None
        """The workload that the last look saw."""
        self._most_bytes_per_key = most_bytes_per_key
        self._proposer = proposer
        self._planner: PlannerProcess | None = None
        self._look_s = look_s
        self._clock = clock
        self._observer = ActivityObserver(index)
        self._seen_s, self._per_s = clock(), 0.0
        self._state = TuningState(limits=limits or TuningLimits())
        self._work: Callable[[], TuningOutcome | None] | None = None
        self._trace: Trace | None = None
        self._selected: SelectedKeys | None = None
        self._reading = False
        self._former: IndexPlan | Configuration | None = None
        self._proposal: Proposal | None = None
        self._mark = ForkMark()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-index", daemon=True)
        _adaptations.add(self)
        if start:
            self._thread.start()

    @property
    def state(self) -> TuningState:
        """State of the policy."""
        return self._state

    def step(self) -> TuningAction:
        """Look at the index once, continue the action under way, and begin the next.

        Raises
        ------
        ForkError : this process was forked from the one that made the adaptation.
        """
        self._mark.check("the adaptation of an index")
        outcome = None if self._work is None else self._work()
        if outcome is not None:
            self._work = None
        if self._work is None:
            self._read_keys()
        self.workload, now_s = self._observer.look(), self._clock()
        self._per_s = self.workload.operations / max(now_s - self._seen_s, 1e-9)
        self._seen_s = now_s
        seen = SeenActivity(now_s=now_s, workload=self.workload, outcome=outcome)
        before = self._state
        self._state, action = decide(before, seen)
        self._begin(action, before)
        return action

    def close(self) -> None:
        """End the thread; a conversion under way ends where it is.

        Leaves that are not converted remain of their type: the index is whole at any time.
        """
        if self._mark.forked:  # the thread and the planner are the parent's
            return
        self._stop.set()
        self._end_planner()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
            self._end_planner()  # which the thread may have started meanwhile
        if isinstance(self._work, _Recording):
            self._work.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_planner(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _run(self) -> None:
        try:
            if self._proposer is None:
                self._process()  # it starts within a second, before the first request
            while not self._stop.wait(self._pause_s()):
                self.step()
        except Exception as error:
            log.exception("an index is no longer adapted")
            self.records.add("ended", error=str(error))

    def _pause_s(self) -> float:
        """Return the time until the next step."""
        if isinstance(self._work, _Recording):
            return max(0.0, self._work.until_s - self._clock())
        return 0.0 if self._work is not None or self._reading else self._look_s

    # -- actions -----------------------------------------------------------------------------------

    def _begin(self, action: TuningAction, before: TuningState) -> None:
        match action:
            case TuningAction.RECORD:
                self._note_change(before)
                self._work = self._recording()
            case TuningAction.PLAN:
                self._work = self._plan
            case TuningAction.CONVERT:
                assert self._proposal is not None
                self._former = self.index.plan or self.index.configuration
                self._convert(self._proposal.plan or self._proposal.configuration, "converted")
            case TuningAction.REVERT:
                assert self._former is not None
                self._convert(self._former, "reverted")
            case TuningAction.ACCEPT:
                self.records.add("watching", configuration=self.index.configuration.name)
            case TuningAction.WAIT:
                pass

    def _note_change(self, before: TuningState) -> None:
        seen = self._state.planned_for
        assert seen is not None
        shares = dict(zip(OPERATIONS, (round(share, 3) for share in seen.shares), strict=True))
        planned = before.planned_for
        distances = {} if planned is None else {
            "mix": round(mix_distance(planned, seen), 3),
            "keys": round(key_distance(planned, seen), 3),
        }  # fmt: skip
        self.records.add("changed", shares=shares, **distances)

    def _recording(self) -> "_Recording":
        """Begin a recording, of so much time that it is not full before its end."""
        selected = self._selected
        assert selected is not None
        selected.read()  # all of it first: what a recording waits for makes it longer
        self._reading = False
        recorder = TraceRecorder(
            self.index, most_operations=2 * _RECORDED, known=selected, yields=True
        )
        selected_per_s = self._per_s * 0.5**selected.halvings
        seconds = min(max(_RECORDED / max(selected_per_s, 1.0), _RECORD_S[0]), _RECORD_S[1])
        return _Recording(recorder, self._clock, seconds, self._recorded)

    def _recorded(self, trace: Trace, share: float) -> None:
        self._trace = trace
        self.records.add("recorded", operations=len(trace), keys=len(trace.loaded), share=share)

    def _read_keys(self) -> None:
        """Read keys for the next recording, if those that were read are too old."""
        selected, size = self._selected, len(self.index)
        if selected is None or not selected.size / _REREAD <= size <= selected.size * _REREAD:
            share = _FIRST_SHARE if selected is None else _READ_SHARE
            self._selected = SelectedKeys(self.index, halvings_for(size, _RECORDED_KEYS), share)
            self._reading = True
        if self._reading:
            assert self._selected is not None
            self._reading = self._selected.read(self._look_s)

    def _process(self) -> PlannerProcess:
        if self._planner is None:
            self._planner = PlannerProcess(self._most_bytes_per_key)
        return self._planner

    def _plan(self) -> TuningOutcome:
        """Plan for the recording; the thread does nothing else meanwhile."""
        index, seen = self.index, self._state.planned_for
        assert self._trace is not None
        assert seen is not None
        value_bytes = 0 if index.value_dtype is None else index.value_dtype.itemsize
        began = time.perf_counter()
        try:
            proposer = self._proposer or self._process()
            proposal = proposer(self._trace, index.configuration, value_bytes, seen.in_batches)
        except HeadraceError as error:
            if not self._stop.is_set():  # else `close` has ended the planner
                self.records.add("failed", error=str(error))
            return TuningOutcome.FAILED
        finally:
            self._trace = None
        self._proposal = proposal
        facts: dict[str, Any] = {
            "configuration": proposal.configuration.name,
            "gain": round(proposal.gain, 3),
            "seconds": round(time.perf_counter() - began, 3),
        }
        if proposal.gain < MIN_GAIN or proposal.configuration == index.configuration:
            self.records.add("kept", **facts)
            return TuningOutcome.KEPT
        self.records.add("planned", **facts)
        return TuningOutcome.DONE

    def _convert(self, target: IndexPlan | Configuration, event: str) -> None:
        self.index.configure(target)

        def ended(conversion: _Conversion) -> None:
            self.conversions += 1
            self.longest_slice_s = max(self.longest_slice_s, conversion.longest_s)
            self.records.add(
                event,
                configuration=self.index.configuration.name,
                seconds=round(conversion.seconds, 3),
                slices=conversion.slices,
                longest_slice_us=round(conversion.longest_s * 1e6),
            )

        seen = self._state.planned_for
        slice_s = _BATCHED_SLICE_S if seen is not None and seen.in_batches else _SLICE_S
        self._work = _Conversion(self.index, slice_s, self._look_s, ended)


@atexit.register
def _close_adaptations() -> None:
    """Close those that the script left open.

    The interpreter ends a thread that comes back from a native call to it, and the process aborts.
    """
    for adaptation in [*_adaptations]:
        adaptation.close()


class _Recording:
    """A recording of some time; it fails where a user records the index."""

    def __init__(
        self,
        recorder: TraceRecorder,
        clock: Callable[[], float],
        seconds: float,
        done: Callable[[Trace, float], None],
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._done = done
        with suppress(TraceError):
            recorder.start()
        self.until_s = clock() + seconds

    def drop(self) -> None:
        self._recorder.drop()

    def __call__(self) -> TuningOutcome | None:
        if self._clock() < self.until_s:
            return None
        try:
            trace = self._recorder.stop()
        except TraceError:
            return TuningOutcome.FAILED
        if not len(trace):
            return TuningOutcome.FAILED
        self._done(trace, self._recorder.share)
        return TuningOutcome.DONE


class _Conversion:
    """A conversion, some of it at each call."""

    def __init__(
        self,
        index: Index,
        slice_s: float,
        step_s: float,
        ended: Callable[["_Conversion"], None],
    ) -> None:
        self._map = index.native
        self._native = _native.IndexConversion(slice_s, _SHARE)
        self._step_s = step_s
        self._ended = ended
        self.seconds = 0.0

    @property
    def slices(self) -> int:
        return self._native.slices

    @property
    def longest_s(self) -> float:
        return self._native.longest_s

    def __call__(self) -> TuningOutcome | None:
        began = time.perf_counter()
        more = self._native.run(self._map, self._step_s)
        self.seconds += time.perf_counter() - began
        if more:
            return None
        self._ended(self)
        return TuningOutcome.DONE
