"""Spread of a job's processes over the nodes of a cluster."""

from collections.abc import Mapping, Sequence

Need = Mapping[str, float]
"""Resources of a process, as Ray counts them: {"CPU": 1.0, "GPU": 1.0}."""


def spread_over_nodes(needs: Sequence[Need], nodes: Sequence[str]) -> list[int]:
    """Return the bundle of each process: among equal needs, neighbours are on different nodes.

    Parameters
    ----------
    nodes : of each bundle; bundle i serves the needs of process i.
    """
    turns: dict[tuple[frozenset[tuple[str, float]], str], int] = {}
    bundles: dict[frozenset[tuple[str, float]], list[tuple[int, int]]] = {}
    for bundle, (need, node) in enumerate(zip(needs, nodes, strict=True)):
        key = frozenset(need.items())
        turn = turns[key, node] = turns.get((key, node), -1) + 1
        bundles.setdefault(key, []).append((turn, bundle))
    queues = {key: iter(sorted(pairs)) for key, pairs in bundles.items()}
    return [next(queues[frozenset(need.items())])[1] for need in needs]
