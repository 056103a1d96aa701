"""Double binary tree: two trees at once, each rank a leaf of one and an inner node of the other."""

from collections.abc import Sequence

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.templates.transfers import (
    REVERSED,
    backwards,
    from_root,
    pipelined,
    rank_order,
    unsupported,
)
from headrace.collectives.program import Schedule, Transfer

Edges = list[tuple[int, int]]
"""(parent, child) pairs of positions, parents first."""


def double_binary_tree(
    demand: Demand, *, order: Sequence[int] | None = None, lag: int | None = None
) -> Schedule:
    """Return the schedule over two complementary binary trees, chunks alternating between them.

    About 2 log2(n) hops whatever the size. For broadcast and reduce the root feeds (or drains)
    two trees over the other ranks. `lag` is the number of chunks that a rank may send up ahead
    of the results that come down (default: all).

    Raises
    ------
    ProgramError : for every collective but allreduce, broadcast and reduce.
    """
    around = rank_order(demand, order)
    if demand.collective is Collective.ALLREDUCE:
        trees = [_named(edges, around) for edges in _two_trees(len(around))]
        chains = []
        for slot in range(demand.slots):
            down = _down(trees[slot % 2], slot)
            chains.append([backwards(down, reduce=True), down])
        return Schedule.of(demand, pipelined(chains, demand.slots if lag is None else lag))
    if demand.collective not in (Collective.BROADCAST, Collective.REDUCE):
        unsupported("double_binary_tree", demand)
    root, *others = from_root(around, demand.root)
    trees = [_named(edges, others) for edges in _two_trees(len(others))]
    transfers: list[Transfer] = []
    for slot in range(demand.slots):
        tree = trees[slot % 2]
        top = [(root, tree[0][0] if tree else others[0])] if others else []
        transfers += _down([*top, *tree], slot)
    if demand.collective in REVERSED:
        transfers = backwards(transfers, reduce=True)
    return Schedule.of(demand, transfers)


def _down(tree: Edges, slot: int) -> list[Transfer]:
    return [Transfer(parent, child, slot, slot) for parent, child in tree]


def _named(edges: Edges, ranks: Sequence[int]) -> Edges:
    return [(ranks[parent], ranks[child]) for parent, child in edges]


def _two_trees(n: int) -> tuple[Edges, Edges]:
    """Return two trees over positions 0 to n-1 with (nearly) no inner node in common.

    In the in-order tree every second position is a leaf; mirroring it (n even) or shifting it by
    one (n odd) makes the others leaves.
    """
    first = _in_order_tree(n)
    if n % 2:
        return first, [((p + 1) % n, (c + 1) % n) for p, c in first]
    return first, [(n - 1 - p, n - 1 - c) for p, c in first]


def _in_order_tree(n: int) -> Edges:
    """Return the binary tree whose in-order walk is 0 to n-1 and whose leaves are even."""
    parent_of: dict[int, int] = {}
    for position in range(1, n + 1):
        at = position
        while at & (at - 1) or 2 * at <= n:  # until it is the root, the largest power of two
            low = at & -at
            at = (at - low) | (low << 1)
            if at <= n:
                parent_of[position] = at
                break
    edges: Edges = []
    wave = [position for position in range(1, n + 1) if position not in parent_of]
    while wave:
        below = [(parent, child) for child, parent in parent_of.items() if parent in wave]
        edges += [(parent - 1, child - 1) for parent, child in below]
        wave = [child for _, child in below]
    return edges
