"""Measuring rank as a process of its own: ``python -m ...measure.launch.agent``.

In: its rank; then, for every group that it is to join, the members and their addresses. Out: its
own address in the group, the reason of the group's loss, progress and the profile (from the
leader), or an error (see `headrace.launch`). It imports no torch, so it starts in a fraction of a
second.
"""

import base64
from collections.abc import Sequence
from typing import Any

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.survey import measure_ranks
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.executor.pacing import pace
from headrace.launch.worker import Receive, Send, run_worker
from headrace.settings import Settings

_CONNECT_S = 15.0


def measure_as_rank(receive: Receive, send: Send) -> None:
    """Measure as one rank, as the parent commands."""
    task = receive()
    groups = _Groups(task["rank"], task["listen"], receive, send)
    try:
        executor, _ = groups.join()
        profile = measure_ranks(
            executor,
            task["hosts"],
            effort=ProbeEffort(**task["effort"]),
            progress=lambda what, share: send(progress=[what, share]),
            regroup=groups,
        )
        if profile is not None:
            send(profile=base64.b64encode(profile.to_artifact().to_bytes()).decode())
    finally:
        groups.leave()


class _Groups:
    """The groups that this rank joins, one after another, by the parent's messages."""

    def __init__(self, rank: int, listen: str, receive: Receive, send: Send) -> None:
        self._rank = rank
        self._listen = listen
        self._receive = receive
        self._send = send
        self._executor: Executor | None = None
        self._members: list[int] = []
        self._generation = -1

    def __call__(self, members: Sequence[int], reason: str) -> tuple[Executor, Sequence[int]]:
        """Leave the group that failed, and join the next; see `group_prober.Regroup`."""
        del members  # the parent chooses the next ones
        self.leave()
        self._send(lost=reason, generation=self._generation)
        return self.join()

    def join(self) -> tuple[Executor, Sequence[int]]:
        """Join the next group that can be formed; returns its executor and members."""
        while True:
            message = self._receive()
            if "members" in message:
                self._listen_for(message)
            elif self._executor is not None and message["generation"] == self._generation:
                try:
                    self._executor.connect(message["addresses"], _CONNECT_S)
                    pace(self._executor, message["addresses"], Settings.from_environment())
                except CommunicationError as error:
                    self.leave()
                    self._send(lost=str(error), generation=self._generation)
                    continue
                return self._executor, self._members

    def leave(self) -> None:
        """Close the connections of the current group, if any."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def _listen_for(self, message: dict[str, Any]) -> None:
        self.leave()
        self._members, self._generation = message["members"], message["generation"]
        self._executor = Executor(
            self._members.index(self._rank),
            len(self._members),
            host=self._listen,
            secret=message["secret"],
            tls=Settings.from_environment().tls,
        )
        self._send(address=self._executor.address, generation=self._generation)


if __name__ == "__main__":
    run_worker(measure_as_rank)
