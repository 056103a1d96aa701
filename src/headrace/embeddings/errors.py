"""Exceptions of embeddings, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    ├── InputError (ValueError)
    │   └── EmbeddingError      a job's embeddings cannot be served as asked
    │       └── ExampleError    a file of examples cannot be read
    └── CommunicationError (RuntimeError)
        └── JobError            a process of a job failed
"""

from collections.abc import Sequence

from headrace.errors import CommunicationError, InputError
from headrace.facades import offered_by


@offered_by("headrace.embeddings")
class EmbeddingError(InputError):
    """A job's embeddings cannot be served as asked; the message says what would do."""


@offered_by("headrace.embeddings")
class ExampleError(EmbeddingError):
    """A file of examples cannot be read; the message names the file, the line and the column."""


@offered_by("headrace.embeddings")
class JobError(CommunicationError):
    """A process of a job failed; the message names it, and has its last lines.

    Attributes
    ----------
    exit_code : of the process, if it is a trainer; 128 + n where signal n ended it.
    lost : whether the process was lost, by a signal or with its host, and reported no error: the
        job can go on from its last commit.
    processes : names of the processes that were lost, such as "trainer 1".
    gone : whether they are trainers that did not come back when the job began again.
    """

    def __init__(
        self,
        text: str,
        exit_code: int,
        *,
        lost: bool = False,
        processes: Sequence[str] = (),
        gone: bool = False,
    ) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.lost = lost
        self.processes = tuple(processes)
        self.gone = gone
