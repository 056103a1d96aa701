"""Interface of a trainer to the servers of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from headrace.embeddings.run.batches import SlottedRows

RowValues = NDArray[Any]
"""[rows, width of the group]: numbers that the model reads, then the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DirtyRows:
    """Rows of a group at a commit whose newest value a trainer has, and the servers have not."""

    rows: SlottedRows
    values: RowValues


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

    def write_back(
        self, batch: int, group: int, rows: SlottedRows, values: RowValues, *, commit: int = 0
    ) -> None:
        """Write the rows that this trainer evicts after a batch; of every batch, in their order.

        It is called with no rows, too: servers count the batches.

        Parameters
        ----------
        commit : number of the commit that the rows belong to.
        """
        ...

    def commit(self, commit: int, dirty: Sequence[DirtyRows]) -> Mapping[str, Any]:
        """Return, when all servers have logged a commit, what they need to begin from it.

        The servers wait for the commits of all trainers. Rows that are written back later belong to
        a later commit, and may be on their way meanwhile.

        Parameters
        ----------
        dirty : of every group.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
