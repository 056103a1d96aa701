"""Recordings: a trace of bounded size of the operations on a live index.

Keys are sampled, not operations: of a selected key every operation is recorded (SHARDS, Waldspurger
et al., FAST 2015). The trace is that of a smaller index with the same mix, where the same keys are
found, new, or erased. When a recording is full, the share of the keys is halved.
"""

from types import TracebackType
from typing import Self

import numpy as np

from headrace import _native
from headrace.facades import offered_by
from headrace.index.errors import TraceError
from headrace.index.run.index import Index
from headrace.index.trace import SCAN, Trace

MOST = 1 << 20
"""Operations of a recording, and about as many keys before the first one: some 25 MB."""


@offered_by("headrace.index")
class SelectedKeys:
    """Keys of an index that a recording selects, read by and by.

    Parameters
    ----------
    halvings : one key in 2^halvings is selected.
    share : of the time that slices take, which hold the index's lock.
    """

    def __init__(self, index: Index, halvings: int, share: float = 0.5) -> None:
        self.halvings = halvings
        self.size = len(index)
        """Keys of the index when reading began."""
        self._map = index.native
        self._native = _native.IndexSelection(halvings, share)

    def read(self, seconds: float = float("inf")) -> bool:
        """Read for about so many seconds; return whether keys are left."""
        return self._native.run(self._map, seconds)

    def codes(self) -> np.ndarray:
        """Return the codes (uint64) of what was read, ascending."""
        return self._native.codes()


def halvings_for(size: int, most: int) -> int:
    """Return how often the share of keys is halved, for at most about `most` of `size`."""
    return max(0, -(-size // most) - 1).bit_length()


@offered_by("headrace.index")
class TraceRecorder:
    """A recording of an index, from `start` to `stop`; or as a context, which leaves `trace`.

    While it runs, each operation costs a hash of its key; a selected one a lookup, too.

    Parameters
    ----------
    index : the operations on it are recorded, from every thread.
    most_operations : of the trace.
    most_keys : keys before the first operation, about.
    known : keys that were read before, as far as they were. Those that came or went since are right
        in the trace only where it has operations on them.
    yields : whether another recorder of the index may take this one's place.
    """

    def __init__(
        self,
        index: Index,
        *,
        most_operations: int = MOST,
        most_keys: int = MOST,
        known: SelectedKeys | None = None,
        yields: bool = False,
    ) -> None:
        self._number = 0
        if min(most_operations, most_keys) < 2:
            raise TraceError(
                f"at most {most_operations} operations and {most_keys} keys are to be recorded, "
                "needs 2 of each at least"
            )
        self._index = index
        self._most_operations = most_operations
        self._most_keys = most_keys
        self._known = known
        self._yields = yields
        self._halvings = 0
        self.trace: Trace | None = None
        """The recorded operations, once stopped."""
        self.share = 1.0
        """Share of the keys that the trace has."""

    def start(self) -> None:
        """Begin.

        Raises
        ------
        TraceError : the index is being recorded already.
        """
        if self._known is not None:
            halvings = self._known.halvings
        else:
            halvings = halvings_for(len(self._index), self._most_keys)
        number = self._index.native.begin_recording(halvings, self._most_operations, self._yields)
        if not number:
            raise TraceError("this index is being recorded already: stop the other recorder first")
        self._halvings, self._number = halvings, number

    def stop(self) -> Trace:
        """End, and return the trace.

        The index is read in slices, which other threads' calls come between.

        Raises
        ------
        TraceError : this one was not started, is stopped, or another took its place.
        """
        # read before the end: what changes meanwhile is recorded
        selected = self._known or SelectedKeys(self._index, self._halvings)
        selected.read()
        present = selected.codes()
        ended = self._index.native.end_recording(self._number)
        if ended is None:
            raise TraceError("this recording is not under way")
        halvings, operations, codes, were_there = ended
        if halvings > self._halvings:
            present = present[_selected(present, halvings)]
        self.share = 0.5**halvings
        self.trace = Trace(
            loaded=_loaded(present, operations, codes, were_there),
            operations=operations,
            keys=codes,
            kind=self._index.native_dtype.name,
        )
        return self.trace

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.drop()

    def __del__(self) -> None:
        if self._number:
            self.drop()

    def drop(self) -> None:
        """End without a trace; without effect if it is not under way."""
        self._index.native.end_recording(self._number)


def _selected(codes: np.ndarray, halvings: int) -> np.ndarray:
    out = np.empty(len(codes), np.bool_)
    _native.recording_selects(codes, halvings, out)
    return out


def _loaded(
    present: np.ndarray, operations: np.ndarray, codes: np.ndarray, were_there: np.ndarray
) -> np.ndarray:
    """Return the codes that were there before the first operation.

    The first operation on a code tells; a code without any is present if it is present now.
    """
    telling = operations != SCAN
    used, first = np.unique(codes[telling], return_index=True)
    untouched = np.setdiff1d(present, used, assume_unique=True)
    return np.concatenate([untouched, used[were_there[telling][first]]])
