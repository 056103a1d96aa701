"""Adaptation of a job: a pure `decide(state, seen) -> (state, adaptations)`.

The cacher alone decides batches in their order, so a change holds from one of its decisions on,
without an agreement of processes. The lookahead follows the room in the caches, prefetch follows
waits, shares follow the trainers' rates; nothing here has a clock or a thread.
"""

from dataclasses import dataclass, replace

from headrace.embeddings.adapt.lookahead import LookaheadState, follow_room
from headrace.embeddings.adapt.seen import JobChanges, SeenBatch
from headrace.embeddings.adapt.shares import ShareState, follow_rates
from headrace.embeddings.adapt.waits import WaitState, follow_waits


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Values in force, and memory between observations.

    Attributes
    ----------
    shares : None: they stay equal.
    """

    lookahead: LookaheadState
    waits: WaitState
    shares: ShareState | None = None

    @classmethod
    def planned(
        cls, *, lookahead: int, most: int, prefetch: int, ready: int, trainers: int | None
    ) -> "JobState":
        """Return the state of a job that begins.

        Parameters
        ----------
        most : limit of the lookahead.
        ready : parts that are decided ahead of prefetched ones.
        trainers : None: shares stay equal.
        """
        several = trainers is not None and trainers > 1
        return cls(
            lookahead=LookaheadState(lookahead=lookahead, most=most),
            waits=WaitState(prefetch=prefetch, ready=ready),
            shares=ShareState.equal(trainers) if trainers is not None and several else None,
        )


def decide(state: JobState, seen: SeenBatch) -> tuple[JobState, JobChanges]:
    """Return the next state, and the changes that are to be told."""
    waits, lookahead, of_waits = follow_waits(state.waits, state.lookahead, seen)
    lookahead, of_room = follow_room(lookahead, seen, waits.prefetch)
    shares, of_rates = state.shares, ()
    if shares is not None:
        shares, of_rates = follow_rates(shares, seen)
    changed = replace(state, lookahead=lookahead, waits=waits, shares=shares)
    return changed, (*of_waits, *of_room, *of_rates)
