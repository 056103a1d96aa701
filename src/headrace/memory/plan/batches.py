"""A training step at any batch size, from its graphs at two of them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headrace.memory.graph import Graph, Implementation, Operator

_Line = Callable[[float, float], float]
"""Figures at both batch sizes -> the figure on the line through them."""


class BatchedGraph:
    """Graphs of one step by batch size: sizes and times lie on lines through those of two batches.

    Parameters
    ----------
    small, large : graphs of the step at `small_batch` and `large_batch` samples.

    Attributes
    ----------
    is_linear : whether both have the same operators, implementations and storages. Else there is no
        graph at another batch: some implementations exist from a size on.
    """

    def __init__(self, small: Graph, small_batch: int, large: Graph, large_batch: int) -> None:
        self._small, self._large = small, large
        self._small_batch, self._large_batch = small_batch, large_batch
        self.is_linear = _structure(small) == _structure(large)

    def at(self, batch: int) -> Graph:
        """Return the graph at a batch size."""
        assert self.is_linear
        share = (batch - self._small_batch) / (self._large_batch - self._small_batch)

        def line(small: float, large: float) -> float:
            return max(small + share * (large - small), 0.0)

        small, large = self._small, self._large
        return replace(
            small,
            storages=tuple(
                replace(first, nbytes=round(line(first.nbytes, second.nbytes)))
                for first, second in zip(small.storages, large.storages, strict=True)
            ),
            operators=tuple(map(partial(_operator, line), small.operators, large.operators)),
            resident={
                name: round(line(nbytes, large.resident[name]))
                for name, nbytes in small.resident.items()
            },
        )


def _operator(line: _Line, small: Operator, large: Operator) -> Operator:
    implementations = map(
        partial(_implementation, line), small.implementations, large.implementations
    )
    return replace(small, implementations=tuple(implementations))


def _implementation(line: _Line, small: Implementation, large: Implementation) -> Implementation:
    return replace(
        small,
        time_us=line(small.time_us, large.time_us),
        workspace_bytes=round(line(small.workspace_bytes, large.workspace_bytes)),
    )


def _structure(graph: Graph) -> object:
    """Return a graph without its sizes and times."""
    operators = tuple(
        (
            operator.again,
            tuple(
                replace(implementation, time_us=0.0, workspace_bytes=0)
                for implementation in operator.implementations
            ),
        )
        for operator in graph.operators
    )
    return operators, len(graph.storages), graph.outputs, graph.results, set(graph.resident)
