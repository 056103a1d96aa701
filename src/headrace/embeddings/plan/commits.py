"""Batches from one commit to the next: what commits move against what a loss would undo."""

import math
from dataclasses import dataclass

from headrace.artifact_value import stored_value
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.step import StepCosts
from headrace.embeddings.plan.traffic import RowBytes
from headrace.embeddings.profile import EmbeddingProfile

UNPLANNED = 50
"""Batches between commits where no step's time is predicted."""

FAILURES_S = 12 * 3600.0
"""Between losses of a process of the job, the mean: of a hundred hosts that fail once in fifty days
each."""

MOST_SHARE = 0.03
"""Of a step's time, that commits may be predicted to take: a twentieth is to be the most that they
take, and at a prediction of that they took 4 to 10% on two processors that all processes shared."""

_COMMIT_S = 0.02
"""Of a commit, whatever its rows: files of the trainers' states, syncs of logs, and the mark."""

_LOGGED_S_PER_BYTE = 2e-9
"""Of a server's processor, for a byte that it logs: gathered, summed, and written to the system.
Rows of 192 bytes took 0.25 to 0.4 us."""

_LEAST_SHARE = 0.01
"""Of a step's time, for what fewer commits cost less, where the log of evicted rows takes most of
`MOST_SHARE`: it is as long with any number of commits."""

_MOST_BATCHES = 100_000


@stored_value("headrace.embeddings", EmbeddingError)
class CommitTimes:
    """Predicted cost of commits.

    Attributes
    ----------
    every : batches from one commit to the next.
    rows : that a commit writes to the servers: those that stay in the caches, updated since.
    share : of the time of steps that commits take where nothing hides them, the servers' log of
        rows that are evicted in between included.
    redone_share : of the time that steps take which a loss undoes: half of `every` at each.
    """

    every: int
    rows: float
    share: float
    redone_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedJob:
    """A job whose trainers write updated rows to the servers by commits.

    Attributes
    ----------
    profile, lookahead, row, costs : of the job.
    servers : processes that store rows.
    step_s : seconds of a step without commits.
    failures_s : between losses of a process, the mean.
    """

    profile: EmbeddingProfile
    lookahead: int
    row: RowBytes
    costs: StepCosts
    servers: int
    step_s: float
    failures_s: float = FAILURES_S

    def times(self, every: int) -> CommitTimes:
        """Return the cost of commits every so many batches."""
        trainers, seconds = self.profile.trainers, self.profile.processor_seconds
        rows = self.profile.dirty(self.lookahead, every)
        link_bytes = rows * self.row.row_bytes / min(trainers, self.servers)
        commit_s = (
            _COMMIT_S
            + link_bytes / self.costs.link_bytes_per_s
            + rows * (seconds.serve / self.servers + seconds.train / trainers)
        )
        logged_s = _LOGGED_S_PER_BYTE * rows * self.row.row_bytes / self.servers
        return CommitTimes(
            every=every,
            rows=rows,
            share=self._evicted_share() + (commit_s + logged_s) / (every * self.step_s),
            redone_share=every * self.step_s / 2 / self.failures_s,
        )

    def _evicted_share(self) -> float:
        """Return the share of a step's time that servers log its evicted rows in."""
        logged_bytes = self.profile.fetched(self.lookahead) * self.row.row_bytes  # as many leave
        return _LOGGED_S_PER_BYTE * logged_bytes / self.servers / self.step_s

    def cheapest(self) -> CommitTimes:
        """Return the commits that cost least, losses included, with at most `MOST_SHARE` for them.

        What commits take falls with the batches between them, and what a loss undoes rises:
        candidates are a twentieth apart.
        """
        candidates = sorted(
            {math.ceil(1.05**power) for power in range(math.ceil(math.log(_MOST_BATCHES, 1.05)))}
        )
        by_interval = [self.times(every) for every in candidates]
        most = max(MOST_SHARE, self._evicted_share() + _LEAST_SHARE)
        affordable = [times for times in by_interval if times.share <= most]
        return min(
            affordable or by_interval[-1:], key=lambda times: times.share + times.redone_share
        )
