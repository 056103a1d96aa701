"""Start of a job's servers of rows by the cacher: those of a commit are opened beforehand."""

import threading
from concurrent.futures import Future

from headrace.embeddings.run.cacher.cacher_options import CacherServerOptions
from headrace.embeddings.run.commits import Beginning
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.servers.row_client import start_servers


class ServerStart:
    """Starts the servers.

    Opening the rows of a commit takes seconds, in which trainers load torch.

    Parameters
    ----------
    settings, options : of the cacher.
    start : number of this start of the job.
    """

    def __init__(
        self,
        settings: RoleSettings,
        options: CacherServerOptions,
        start: int,
        beginning: Beginning,
    ) -> None:
        self._settings = settings
        self._options = options
        self._start = start
        self._beginning = beginning
        self._opened: Future[None] | None = None

    def begin(self, description: JobDescription) -> None:
        """Start the servers for a description of the job, in a thread."""
        self._opened = Future()
        threading.Thread(
            target=self._open, args=(description, self._opened), daemon=True, name="servers"
        ).start()

    def finish(self, description: JobDescription) -> None:
        """Return when the servers have started, those that `begin` did not start too.

        Parameters
        ----------
        description : equal to that of `begin`, but for slots and for lines that data may reject.

        Raises
        ------
        EmbeddingError, CommunicationError : see `start_servers`.
        """
        if self._opened is None:
            self._start_servers(description)
        else:
            self._opened.result()  # its calls have deadlines

    def _open(self, description: JobDescription, opened: Future[None]) -> None:
        try:
            self._start_servers(description)
        except BaseException as error:  # of any kind: `finish` raises it
            opened.set_exception(error)
        else:
            opened.set_result(None)

    def _start_servers(self, description: JobDescription) -> None:
        beginning = self._beginning
        start_servers(
            self._options.servers,
            description,
            self._options.trainers,
            role=self._settings.role,
            secret=self._settings.secret,
            deadline_s=self._settings.deadline_s,
            start=self._start,
            first_batch=beginning.batch,
            first_commit=beginning.commit,
            committed=beginning.servers,
        )
