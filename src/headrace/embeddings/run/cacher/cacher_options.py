"""Options of a cacher that serves a job, as its settings have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.embeddings.profile import Synchronisation
from headrace.embeddings.run.cacher.cacher import CacherOptions
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.settings import SILENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CacherServerOptions:
    """Options of a cacher, in its settings.

    Attributes
    ----------
    servers, readers : their addresses, by their numbers.
    lookahead, prefetch, synchronisation, commit_every : see `CacherOptions`.
    folder : of the job's commits; None: there are none.
    silence_s : without a pulse after which a process counts as lost.
    adapt, equal_shares, adapt_log : see `JobOptions`.
    ideal : whether no rows move; see `headrace.embeddings.run.ideal`.
    readers_restart : whether a reader that is lost is started again, by the cacher's parent.
    """

    trainers: int
    servers: tuple[str, ...]
    readers: tuple[str, ...]
    lookahead: int | None = None
    prefetch: int = 1
    synchronisation: Synchronisation = Synchronisation.TARGETED
    commit_every: int = 0
    folder: str | None = None
    silence_s: float = SILENCE_S
    adapt: bool = True
    equal_shares: bool = False
    adapt_log: str | None = None
    ideal: bool = False
    readers_restart: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return those of settings, where JSON has tuples as lists and names of enumerations."""
        values: dict[str, Any] = {
            **options,
            "servers": tuple(options["servers"]),
            "readers": tuple(options["readers"]),
            "synchronisation": Synchronisation(options["synchronisation"]),
        }
        return cls(**values)

    def decisions(self, description: JobDescription) -> CacherOptions:
        """Return the options of decisions on a job.

        Raises
        ------
        EmbeddingError : they are not options of such a job.
        """
        return CacherOptions(
            tables=description.tables,
            groups=description.groups,
            slots=description.slots,
            trainers=self.trainers,
            lookahead=self.lookahead,
            prefetch=self.prefetch,
            synchronisation=self.synchronisation,
            commit_every=self.commit_every,
        )
