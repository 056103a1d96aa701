"""Meeting of a job's trainers at the cacher: they agree on the job, and learn of each other.

The cacher is the process that all trainers know. They describe the job there, which starts the
servers and readers; its answer names these. Then they exchange their own addresses.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.rpc import Call, Handler, Peer
from headrace.errors import CommunicationError

_NOTHING = np.empty(0, np.uint8)


class Rendezvous:
    """The cacher's side.

    Parameters
    ----------
    trainers : their number.
    """

    def __init__(self, trainers: int) -> None:
        self._trainers = trainers
        self._changed = threading.Condition()
        self._descriptions: dict[int, JobDescription] = {}
        self._answer: Mapping[str, Any] | None = None
        self._addresses: dict[int, str] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of its calls."""
        return {"describe": self._describe, "meet": self._meet}

    def description(self, timeout_s: float) -> JobDescription:
        """Wait for all trainers' descriptions and return the job's.

        Raises
        ------
        EmbeddingError : they differ.
        CommunicationError : some have not come in time.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_described, timeout_s):
                missing = sorted(set(range(self._trainers)) - set(self._descriptions))
                raise CommunicationError(
                    f"trainers {missing} have not called headrace.embeddings.fit for "
                    f"{timeout_s:g} s"
                )
            return self._descriptions[0]

    def answer(self, fields: Mapping[str, Any]) -> None:
        """Answer the trainers' descriptions, once the job's other roles have started."""
        with self._changed:
            self._answer = fields
            self._changed.notify_all()

    def _is_described(self) -> bool:
        return len(self._descriptions) == self._trainers

    def _describe(self, call: Call) -> None:
        trainer = self._trainer(call)
        description = JobDescription.from_fields(call.request["job"])
        with self._changed:
            for earlier, other in self._descriptions.items():
                if field := description.difference(other):
                    raise EmbeddingError(
                        f"trainers {earlier} and {trainer} differ in the job's {field}: all need "
                        "the same model and data"
                    )
            self._descriptions[trainer] = description
            self._changed.notify_all()
            call.wait(self._changed, lambda: self._answer is not None, self._awaited)
            answer = self._answer or {}
        call.send(_NOTHING, **answer)

    def _awaited(self) -> str:
        if self._is_described():
            return "the servers to start"
        return f"{self._trainers - len(self._descriptions)} more trainers to describe the job"

    def _meet(self, call: Call) -> None:
        trainer = self._trainer(call)
        with self._changed:
            self._addresses[trainer] = str(call.request["address"])
            self._changed.notify_all()
            call.wait(
                self._changed,
                lambda: len(self._addresses) == self._trainers,
                lambda: f"{self._trainers - len(self._addresses)} more trainers",
            )
            addresses = [self._addresses[other] for other in range(self._trainers)]
        call.send(_NOTHING, addresses=addresses)

    def _trainer(self, call: Call) -> int:
        trainer = call.request["trainer"]
        if not isinstance(trainer, int) or not 0 <= trainer < self._trainers:
            raise EmbeddingError(f"trainer is {trainer!r}, needs 0 to {self._trainers - 1}")
        return trainer


def describe(
    cacher: Peer, trainer: int, description: JobDescription, deadline_s: float
) -> Mapping[str, Any]:
    """Describe the job to the cacher; returns its answer.

    Raises
    ------
    EmbeddingError : the trainers' descriptions differ; a role refuses its part of the job.
    CommunicationError : the cacher is gone, or another trainer has not come in time.
    """
    fields = {"trainer": trainer, "job": description.to_fields()}
    return _ask(cacher, "describe", fields, deadline_s)


def meet(cacher: Peer, trainer: int, address: str, deadline_s: float) -> list[str]:
    """Return the addresses of all trainers, of which this one's is given.

    Raises
    ------
    CommunicationError : as `describe`.
    """
    fields = {"trainer": trainer, "address": address}
    return list(_ask(cacher, "meet", fields, deadline_s)["addresses"])


def _ask(
    cacher: Peer, method: str, fields: Mapping[str, Any], deadline_s: float
) -> Mapping[str, Any]:
    with cacher.call(method, deadline_s=deadline_s, **fields) as exchange:
        exchange.finish()
        return exchange.expect().fields
