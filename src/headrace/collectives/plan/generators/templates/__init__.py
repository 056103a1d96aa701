"""Known algorithms as schedules: every one a function of a demand, none of a size in bytes.

Supported collectives (a template raises ProgramError for the rest):

==================  ========================================================================
ring                allreduce, reduce, broadcast, allgather, reduce_scatter
halving_doubling    allreduce; allgather and reduce_scatter for powers of two
recursive_doubling  allreduce (whole vector each round: few messages, many bytes)
double_binary_tree  allreduce, reduce, broadcast
direct              everything, in one hop (allreduce in two)
full_exchange       allreduce in one hop: every rank sends its vector to every other
hierarchical        all but gather, scatter and all_to_all, across groups once
exchange            allreduce across groups with pairwise swaps between local masters
==================  ========================================================================

Two invariants hold for all of them. A transfer stays within one block, so a block may lie anywhere
in memory. Scratch slot ``demand.slots + k`` only holds the chunk of slot k, is never sent from, and
is used one slot at a time.
"""

from headrace.collectives.plan.generators.templates.direct import direct, full_exchange
from headrace.collectives.plan.generators.templates.doubling import (
    halving_doubling,
    recursive_doubling,
)
from headrace.collectives.plan.generators.templates.hierarchical import exchange, hierarchical
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.generators.templates.trees import double_binary_tree
from headrace.collectives.plan.generators.templates.two_level.masters import Spread

__all__ = [
    "Spread",
    "direct",
    "double_binary_tree",
    "exchange",
    "full_exchange",
    "halving_doubling",
    "hierarchical",
    "recursive_doubling",
    "ring",
]
