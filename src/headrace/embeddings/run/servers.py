"""Interface of a trainer to the servers of rows."""

from typing import Any, Protocol

from numpy.typing import NDArray

from headrace.embeddings.run.batches import SlottedRows

RowValues = NDArray[Any]
"""[rows, width of the group]: numbers that the model reads, then the optimizer's state."""


class RowServers(Protocol):
    """One trainer's connection to all servers. Each method is called by one thread at a time.

    Every one of them raises CommunicationError, naming the server, where it fails or the deadline
    passes.
    """

    def fetch(self, batch: int, group: int, after: int, rows: SlottedRows) -> RowValues:
        """Return the rows that a batch fetches, in their order.

        The servers answer when all trainers' evictions after batch `after` are written.
        """
        ...

    def write_back(self, batch: int, group: int, rows: SlottedRows, values: RowValues) -> None:
        """Write the rows that this trainer evicts after a batch; of every batch, in their order.

        It is called with no rows, too: servers count the batches.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
