"""The cacher's connections with the readers, each of which can be replaced by another process."""

import threading
import time
from collections.abc import Sequence

from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.rpc.calls import ConnectionLostError, RpcClient
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.errors import CommunicationError

_RETRY_S = 1.0
"""From a lost connection to the next one, unless another process comes before."""


class ReaderConnections:
    """Calls of a job's readers.

    A reader has no state but its place in the data, which every request names: where its process is
    lost, another one answers the same request with the same batch.

    Parameters
    ----------
    addresses : of the readers, by their numbers.
    settings : of the process that calls: its role, the job's secret, and the deadline of calls.
    restarted : whether a reader that is lost is started again; else its loss is an error.

    Raises
    ------
    CommunicationError : an address is none.
    """

    def __init__(
        self, addresses: Sequence[str], settings: RoleSettings, *, restarted: bool = False
    ) -> None:
        self.restarted = restarted
        self._settings = settings
        self._changed = threading.Condition()
        self._closed = False
        self._addresses = [*addresses]
        self._clients = [self._client(reader) for reader in range(len(addresses))]

    def __len__(self) -> int:
        """Return the number of readers."""
        return len(self._addresses)

    def next(self, reader: int, request: RpcMessage) -> RpcMessage:
        """Call a reader's method `next`, of other processes where it is lost and started again.

        Raises
        ------
        EmbeddingError : the data are wrong.
        CommunicationError : the reader failed, or did not answer within the deadline.
        """
        until = time.monotonic() + self._settings.deadline_s
        while True:
            client = self._clients[reader]
            try:
                return client.call("next", request)
            except ConnectionLostError:
                if not self.restarted or time.monotonic() >= until:
                    raise
                self._await_another(reader, client)

    def replace(self, reader: int, address: str) -> None:
        """Call a reader at its newest process's address; calls of an earlier process end."""
        if address != self._addresses[reader]:
            self._renew(reader, address)

    def reset(self, reader: int) -> None:
        """End the calls of a reader that is silent, and make them again."""
        self._renew(reader, self._addresses[reader])

    def close(self) -> None:
        """End all calls, and make no others; idempotent."""
        with self._changed:
            self._closed = True
            clients = [*self._clients]
            self._changed.notify_all()
        for client in clients:
            client.close()

    def _renew(self, reader: int, address: str) -> None:
        with self._changed:
            if self._closed:
                return
            former = self._clients[reader]
            self._addresses[reader] = address
            self._clients[reader] = self._client(reader)
            self._changed.notify_all()
        former.close()

    def _await_another(self, reader: int, client: RpcClient) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._clients[reader] is not client or self._closed, _RETRY_S
            )
            if self._closed:
                raise CommunicationError(f"reader {reader}, next: the connection was closed")

    def _client(self, reader: int) -> RpcClient:
        settings = self._settings
        return RpcClient(
            self._addresses[reader],
            peer_role=f"reader {reader}",
            role=settings.role,
            secret=settings.secret,
            deadline_s=settings.deadline_s,
        )
