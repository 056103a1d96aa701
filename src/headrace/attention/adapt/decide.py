"""When new caches get more clusters: a pure `decide(state, observation) -> (state, action)`.

An observed request has the output error of the plan that its cache is by. The median of the last
ones is compared with the error that the plan has on its own text; a plan that does not state it is
compared with the first requests. More clusters are never taken back: the error of fewer is not
observed then. Nothing here has a clock or a thread.
"""

from dataclasses import field, replace
from enum import Enum, auto
from math import isfinite
from statistics import median

from headrace.attention.errors import AttentionError
from headrace.facades import offered_by, public_value


@public_value("headrace.attention")
class ClusterLimits:
    """Policy.

    Attributes
    ----------
    threshold : times the plan's output error, above which new caches get more clusters. Of
        SmolLM2-135M, requests of one text deviate from their mean by 6% (fixed membership) to 16%
        (each request's own); the means of source code and of chats are higher by 5 to 24%.
    least_error : output error below which nothing is changed: above that of keys and values in 8
        bits (4e-4 of SmolLM2-135M), which more clusters do not lower.
    requests : observed ones whose median is compared: an unusual request is no other text.

    Raises
    ------
    AttentionError : a number out of range.
    """

    threshold: float = 1.5
    least_error: float = 1e-3
    requests: int = 5

    def __post_init__(self) -> None:
        if not self.threshold >= 1:
            raise AttentionError(f"threshold is {self.threshold:g}, needs at least 1")
        if not self.least_error >= 0:
            raise AttentionError(f"least_error is {self.least_error:g}, needs at least 0")
        if self.requests < 1:
            raise AttentionError(f"requests are {self.requests}, needs at least 1")


@public_value("headrace.attention")
class SeenRequest:
    """Observation of a request, or of a turn of one.

    Attributes
    ----------
    level : of its cache: 0 is the plan, 1 its first alternative.
    output_error : mean over the layers, see `AttentionPlan.output_error`.
    """

    level: int
    output_error: float


@public_value("headrace.attention")
class ClusterState:
    """Memory between observations.

    Attributes
    ----------
    alternatives : of the plan.
    planned_error : of the plan on its text; None: not known yet.
    level : of new caches.
    errors : of observed requests since the level's first, the last `ClusterLimits.requests`.
    """

    alternatives: int
    planned_error: float | None = None
    limits: ClusterLimits = field(default_factory=ClusterLimits)
    level: int = 0
    errors: tuple[float, ...] = ()

    @property
    def largest_error(self) -> float | None:
        """Median output error above which new caches get more clusters; None: not known yet."""
        if self.planned_error is None:
            return None
        return max(self.limits.threshold * self.planned_error, self.limits.least_error)


@offered_by("headrace.attention")
class ClusterAction(Enum):
    """Actions about caches that are yet to be made."""

    NONE = auto()
    MORE_CLUSTERS = auto()  # of the plan's next alternative


def decide(state: ClusterState, seen: SeenRequest) -> tuple[ClusterState, ClusterAction]:
    """Return the next state and action."""
    # caches from before the last change live on; more clusters do not mend what is not a number
    if seen.level != state.level or not isfinite(seen.output_error):
        return state, ClusterAction.NONE
    state = replace(state, errors=(*state.errors, seen.output_error)[-state.limits.requests :])
    if len(state.errors) < state.limits.requests:
        return state, ClusterAction.NONE
    if state.largest_error is None:
        return replace(state, planned_error=median(state.errors)), ClusterAction.NONE
    if median(state.errors) > state.largest_error and state.level < state.alternatives:
        return replace(state, level=state.level + 1, errors=()), ClusterAction.MORE_CLUSTERS
    return state, ClusterAction.NONE
