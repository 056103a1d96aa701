"""A server of rows, reader or cacher as a process: ``python -m headrace.embeddings.run.process``.

In: a message with its settings, the secret among them; then the cacher's address, for pulses, and
requests for an answer or its status; to the cacher also the ends of trainers. Out: its address,
answers, a status for each that is asked for, and what the processes of its kind tell; or an error
(see `headrace.launch`). It serves until the process that started it ends it, or is gone.
"""

import importlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.errors import CommunicationError
from headrace.launch.worker import Receive, Send, run_worker

MODULES: Mapping[str, str] = {
    "server": "headrace.embeddings.run.servers.row_server",
    "reader": "headrace.embeddings.run.readers.reader_server",
    "cacher": "headrace.embeddings.adapt.cacher",
}
"""Of every kind of process, the module whose function `serve` takes settings.

It returns what `Served` describes, at once. Each is loaded in its own processes alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """Settings of a process that serves calls.

    Attributes
    ----------
    kind : one of `MODULES`.
    number : among those of its kind, from 0 on.
    count : of processes of its kind.
    host : address to listen at.
    deadline_s : of its calls to others.
    secret : of the job.
    options : of its kind alone. The cacher's are "servers" and "readers", lists of addresses, and
        "trainers", "lookahead" (None: as the caches allow), "prefetch" and "synchronisation".
    """

    kind: str
    number: int
    count: int
    host: str
    deadline_s: float
    secret: str = field(repr=False)
    options: Mapping[str, Any]

    @property
    def role(self) -> str:
        """Name of the process, for errors: "server 0"."""
        return self.kind if self.kind == "cacher" else f"{self.kind} {self.number}"

    def to_message(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """Return the settings that `to_message` made."""
        return cls(**message)


class Served(Protocol):
    """Methods that are served, such as an `RpcServer`."""

    @property
    def address(self) -> str:
        """Address that they are served at, "host:port"."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Return figures so far, as JSON can express them."""
        ...

    def close(self) -> None:
        """Serve no more."""
        ...


@runtime_checkable
class FollowsTrainers(Protocol):
    """Methods whose answers depend on trainers that live."""

    def trainer_ended(self, trainer: int) -> None:
        """Note that a trainer's process ended without an error."""
        ...


class Serve(Protocol):
    """Starts to serve."""

    def __call__(self, settings: RoleSettings, send: Send) -> Served:
        """Return the service; it goes on in threads, and may send the parent messages."""
        ...


def serve_role(receive: Receive, send: Send, serve: Serve | None = None) -> None:
    """Serve as the parent's first message says, and obey those that follow, until it is gone.

    The address of the job's "cacher" is where pulses go; a trainer that "ended" is passed on; an
    "ask" gets an "answer"; any other message is answered with the "status" of now.

    Parameters
    ----------
    serve : None: that of the module of the kind.
    """
    settings = RoleSettings.from_message(receive())
    start: Serve = serve or importlib.import_module(MODULES[settings.kind]).serve
    with ExitStack() as ends:
        served = start(settings, send)
        ends.callback(served.close)
        send(address=served.address)
        while True:
            try:
                message = receive()
            except CommunicationError:  # the parent is gone: the end of a job
                return
            if "cacher" in message:
                _begin_pulses(settings, message["cacher"], served.address, ends)
            elif "ended" in message:
                if isinstance(served, FollowsTrainers):
                    served.trainer_ended(message["ended"])
            elif "ask" in message:
                send(answer=True)
            else:
                send(status=served.status())


def _begin_pulses(settings: RoleSettings, cacher: str, own: str, ends: ExitStack) -> None:
    from headrace.embeddings.run.rpc.pulses import (
        attend,  # the native module, in such processes alone
    )

    with RpcClient(
        cacher, peer_role="cacher", role=settings.role, secret=settings.secret
    ) as client:
        pulse = attend(client, settings.role, settings.secret, address=own)
    ends.callback(pulse.close)


if __name__ == "__main__":
    run_worker(serve_role)
