"""Rows of a group of tables by the server that has them.

By the rule of native/embedding/shards.hpp: of as many consecutive ids as servers each has one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import _native


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ServerRows:
    """Rows of one server, in the order of all.

    Attributes
    ----------
    ids, ends : [rows], and [tables of the group]: where those of each table end.
    places : [rows]: their places among all rows; a slice, where they follow one another.
    """

    server: int
    ids: NDArray[np.int64]
    ends: NDArray[np.int64]
    places: NDArray[np.uint32] | slice

    def parts(self, most: int) -> "Iterator[ServerRows]":
        """Yield parts of up to so many rows; one without rows, where there are none."""
        for start in range(0, max(1, len(self.ids)), most):
            stop = min(start + most, len(self.ids))
            yield ServerRows(
                server=self.server,
                ids=self.ids[start:stop],
                ends=np.clip(self.ends, start, stop) - start,
                places=slice(start, stop)
                if isinstance(self.places, slice)
                else self.places[start:stop],
            )

    def gathered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of these rows, of those of all rows."""
        if isinstance(self.places, slice):
            return np.ascontiguousarray(values[self.places])
        rows = np.empty((len(self.places), values.shape[1]), values.dtype)
        _native.gather_rows(self.places, np.ascontiguousarray(values), rows)
        return rows

    def scatter(self, rows: NDArray[Any], values: NDArray[Any]) -> None:
        """Write these rows into those of all rows."""
        if isinstance(self.places, slice):
            values[self.places] = rows
        else:
            _native.scatter_rows(self.places, rows, values)


def by_server(
    ids: NDArray[np.int64], ends: NDArray[np.int64], servers: int
) -> Iterator[ServerRows]:
    """Yield each server's rows, none for some servers.

    Parameters
    ----------
    ids, ends : of all rows, and where those of each table end.

    Raises
    ------
    ValueError : the ends are not those of as many rows.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    ends = np.ascontiguousarray(ends, np.int64)
    if servers == 1:
        yield ServerRows(server=0, ids=ids, ends=ends, places=slice(0, len(ids)))
        return
    split = _native.split_rows(ids, ends, servers)
    ends_of_servers = split.ends.reshape(servers, -1)
    for server, (start, stop) in enumerate(zip(split.first[:-1], split.first[1:], strict=True)):
        yield ServerRows(
            server=server,
            ids=split.ids[start:stop],
            ends=ends_of_servers[server],
            places=split.places[start:stop],
        )
