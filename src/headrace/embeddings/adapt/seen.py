"""Values of the policies: observations of a job, and changes of it with their reasons."""

from dataclasses import dataclass

Value = int | tuple[float, ...]


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
    distinct, newest, added : see `WindowRows`.
    ahead : whether it was handed over later than it was decided, for want of room: the cacher is
        faster than the trainers.
    late : whether a trainer has taken all parts before the next batch has arrived.
    steps : of the trainers since the observation before.
    """

    batch: int
    arriving: int
    distinct: float
    newest: float
    added: float
    ahead: bool = True
    late: bool = False
    steps: tuple[SeenStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """Change of a job.

    Attributes
    ----------
    name : of what changed: "lookahead", "lookahead limit", "prefetch", "ready", "shares"; "none":
        nothing did.
    batch : that was decided last.
    reason : a sentence.
    """

    name: str
    before: Value
    after: Value
    batch: int
    reason: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        if self.before == self.after:
            return f"after batch {self.batch}: {self.reason}"
        before, after = _text(self.before), _text(self.after)
        return f"after batch {self.batch}: {self.name} {before} -> {after}: {self.reason}"


JobChanges = tuple[JobChange, ...]


def _text(value: Value) -> str:
    return str(value) if isinstance(value, int) else "/".join(f"{share:.3f}" for share in value)
