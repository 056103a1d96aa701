"""Readers of a job that are lost and start again, while the job's other processes go on."""

from collections.abc import Collection, Mapping
from typing import Any

from headrace.embeddings.run.job.job_processes import JobProcesses, ProcessKey
from headrace.errors import CommunicationError


class ReaderRestarts:
    """Starts readers again.

    One that is lost again before it has served a batch is not: it would be lost there again. The
    job can then begin again as a whole, on other hosts if there are some.
    """

    def __init__(self, processes: JobProcesses) -> None:
        self._processes = processes
        self._serving = set[ProcessKey]()
        self.starting = set[ProcessKey]()
        """Readers that were started again, and have not served a batch since."""

    def restart(self, lost: Collection[ProcessKey]) -> bool:
        """Start processes again if all of them are readers that have served; return whether."""
        if not self._processes.readers_restart or not lost or not self._serving.issuperset(lost):
            return False
        for key in lost:
            self._serving.discard(key)
            self.starting.add(key)
            try:
                self._processes.restart_reader(key)
            except CommunicationError:  # its loss is the job's
                return False
        return True

    def take(self, key: ProcessKey, message: Mapping[str, Any]) -> None:
        """Take a message of a process."""
        if "serves" in message:
            self._serving.add(key)
            self.starting.discard(key)
        elif "address" in message and key in self.starting:
            self._processes.let_attend(key)


def restarted_line(reason: str, lost: Collection[ProcessKey]) -> str:
    """Return a line of output that says why readers start again."""
    again = "it starts" if len(lost) == 1 else "they start"
    return f"{reason}. The other processes go on while {again} again."
