"""Values of the policies: observations of a job."""

from dataclasses import dataclass

from headrace.embeddings.changes import JobChange


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """Step of all trainers.

    Attributes
    ----------
    batch : its number.
    step_s, wait_s : of the trainer that waited longest for the batch and its rows: the step, and
        that wait.
    compute_s, examples : of every trainer.
    """

    batch: int
    step_s: float
    wait_s: float
    compute_s: tuple[float, ...] = ()
    examples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatch:
    """Observation after a batch was decided, and handed over to the trainers.

    Attributes
    ----------
    batch : its number.
    arriving : number of the batch that arrives next.
    slot_share, short : see `WindowRows`.
    ahead : whether it was handed over later than it was decided, for want of room: the cacher is
        faster than the trainers.
    late : whether a trainer has taken all parts before the next batch has arrived.
    steps : of the trainers since the observation before.
    """

    batch: int
    arriving: int
    slot_share: float
    short: bool = False
    ahead: bool = True
    late: bool = False
    steps: tuple[SeenStep, ...] = ()


JobChanges = tuple[JobChange, ...]
