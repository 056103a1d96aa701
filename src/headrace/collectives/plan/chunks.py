"""Chunks and sends: the form in which synthesizers think.

A synthesizer is asked to carry chunks: chunk c is at `origin[c]` at first and has to reach every
rank of `targets[c]`. Its answer is a list of sends in one order, grouped into messages: TACCL's
abstract algorithm. `realize` turns it into a `Schedule`, giving every chunk a slot wherever it
passes; `reversed_sends` turns a way to carry chunks into a way to combine them.
"""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import Demand

__all__ = ["Carriage", "Sends"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Carriage:
    """What is to be carried: a collective without its combining.

    Attributes
    ----------
    ranks : number of ranks.
    origin : (chunks,) int32, the rank that holds the chunk at first.
    targets : (chunks, ranks) bool, who must get it; False at the origin.
    """

    ranks: int
    origin: np.ndarray
    targets: np.ndarray

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.origin)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sends:
    """Who sends which chunk to whom; columns of equal length, in one global order.

    Every send comes after all that it depends on. Rows with the same `message` are one message:
    consecutive, between the same two ranks, charged alpha once, complete when all have arrived.

    Attributes
    ----------
    chunk, src, dst : int32.
    reduce : bool; the chunk is combined into what `dst` holds of it, else it replaces it.
    message : int32, starting at 0 and growing by 1 from message to message.
    start_us : float64, when the planner wants the message to begin (all rows of a message alike);
        an empty array if it has no opinion.
    """

    chunk: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    reduce: np.ndarray
    message: np.ndarray
    start_us: np.ndarray
