"""`AttentionAdaptation`: caches with more clusters where a plan's output error has grown."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch import nn

from headrace.attention.adapt.decide import (
    ClusterAction,
    ClusterLimits,
    ClusterState,
    SeenRequest,
    decide,
)
from headrace.attention.adapt.observe import ObservedError, RequestObservation, observe
from headrace.attention.errors import AttentionError
from headrace.attention.models import check_plan
from headrace.attention.plan.alternatives import with_alternatives
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.compress import compressed
from headrace.facades import offered_by
from headrace.forks import ThreadLock
from headrace.job.records import Records

EVERY = 100
"""Requests of which one is observed: its attention is computed twice, the others' is not."""


@offered_by("headrace.attention")
class AttentionAdaptation:
    """Adaptation of a plan to the text; `compress` and `cache` take it in place of the plan.

    One request in `every` also keeps all of its keys and values, in the model's type, and its
    output error is measured. Where the median of the last ones exceeds the plan's by a factor, new
    caches are by the plan's next alternative. Caches that exist are not changed. It may be used
    from several threads, and for several contexts one after another.

    Parameters
    ----------
    plan : without alternatives, those of `with_alternatives` without a profile.
    every : requests of which one is observed, at most one of a batch.
    limits : policy.
    log_path : file that events are appended to, as lines of JSON.

    Attributes
    ----------
    records : events, the latest last; see docs/attention.md.
    requests, observed : numbers of requests so far.
    output_error : of the last one that was observed; None: there is none yet.

    Raises
    ------
    AttentionError : `every` is out of range.
    """

    def __init__(
        self,
        plan: AttentionPlan,
        *,
        every: int = EVERY,
        limits: ClusterLimits | None = None,
        log_path: Path | None = None,
    ) -> None:
        if every < 1:
            raise AttentionError(f"every is {every}, needs at least 1 request")
        if not plan.alternatives:
            plan = with_alternatives(plan, None)
        self._plans = (plan, *plan.alternatives)
        self._every = every
        self._state = ClusterState(
            alternatives=len(plan.alternatives),
            planned_error=plan.output_error,
            limits=limits or ClusterLimits(),
        )
        self._observations: list[RequestObservation] = []
        self._lock = ThreadLock()
        self.records = Records(log_path)
        self.requests = 0
        self.observed = 0
        self.output_error: float | None = None

    @property
    def plan(self) -> AttentionPlan:
        """Plan of new caches."""
        return self._plans[self._state.level]

    @property
    def state(self) -> ClusterState:
        """State of the policy."""
        return self._state

    @contextmanager
    def compressed(self, model: nn.Module) -> Generator[nn.Module]:
        """Compute the model's attention meanwhile; see `headrace.attention.compress`."""
        with compressed(model, self.plan, partial(self._new_cache, model)):
            yield model
        self.collect()

    def new_cache(self, model: nn.Module, *, max_tokens: int | None = None) -> CompressedCache:
        """Return an empty cache; see `headrace.attention.cache`."""
        check_plan(model, self.plan)
        return self._new_cache(model, max_tokens=max_tokens)

    def _new_cache(self, model: nn.Module, *, max_tokens: int | None = None) -> CompressedCache:
        self.collect()
        level = self._state.level
        cache = CompressedCache(self._plans[level], max_tokens)
        observation = observe(model, cache, self._sampled, level=level)
        with self._lock:
            self._observations.append(observation)
        return cache

    def _sampled(self, batch: int) -> int | None:
        """Return the place of the request to observe among the next ones."""
        with self._lock:
            place = -self.requests % self._every
            self.requests += batch
        return place if place < batch else None

    def collect(self) -> None:
        """Look at the observed requests: those that ended, and turns of those that go on.

        New caches and the ends of contexts do so, too.
        """
        with self._lock:
            going_on: list[RequestObservation] = []
            for observation in self._observations:
                if not observation.ended:
                    going_on.append(observation)
                seen = observation.take()
                if seen is not None:
                    self._add(observation.level, seen)
            self._observations = going_on

    def _add(self, level: int, seen: ObservedError) -> None:
        self.observed += 1
        self.output_error = seen.mean
        self.records.add(
            "observed",
            level=level,
            clusters=self._plans[level].clusters,
            tokens=seen.tokens,
            output_error=seen.mean,
            planned_error=self._state.planned_error,
            largest_in_layer=max(range(len(seen.layers)), key=seen.layers.__getitem__),
        )
        before = self._state
        self._state, action = decide(before, SeenRequest(level=level, output_error=seen.mean))
        if action is ClusterAction.MORE_CLUSTERS:
            self.records.add(
                "more clusters",
                level=self._state.level,
                clusters=self.plan.clusters,
                before=self._plans[before.level].clusters,
                largest_error=before.largest_error,
            )
