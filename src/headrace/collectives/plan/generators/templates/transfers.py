"""Transfer helpers of the templates: groups, orders, even cuts, reversal, pipelining."""

from collections.abc import Iterable, Sequence
from typing import NoReturn

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.program import Transfer

REVERSED = {
    Collective.REDUCE: Collective.BROADCAST,
    Collective.REDUCE_SCATTER: Collective.ALLGATHER,
    Collective.GATHER: Collective.SCATTER,
}
"""A collective and the one whose transfers, run backwards and reducing (or not), make it."""


def unsupported(template: str, demand: Demand, why: str = "") -> NoReturn:
    """Raise ProgramError: `template` has no schedule for `demand`."""
    raise ProgramError(
        f"{template} does not support {demand.collective} over {demand.ranks} ranks"
        + (f": {why}" if why else "")
    )


def rank_order(demand: Demand, order: Sequence[int] | None) -> tuple[int, ...]:
    """Return `order`, or the ranks as they are numbered; raises ProgramError if it is neither."""
    if order is None:
        return tuple(range(demand.ranks))
    if sorted(order) != list(range(demand.ranks)):
        raise ProgramError(
            f"order is {list(order)}, needs every rank from 0 to {demand.ranks - 1} once"
        )
    return tuple(order)


def from_root(order: Sequence[int], root: int) -> tuple[int, ...]:
    """Return `order` rotated so that it starts with `root`."""
    at = order.index(root)
    return (*order[at:], *order[:at])


def cut(slots: range, parts: int) -> list[range]:
    """Cut `slots` into `parts` consecutive ranges as even as possible (some may be empty)."""
    n = len(slots)
    return [slots[k * n // parts : (k + 1) * n // parts] for k in range(parts)]


def move(src: int, dst: int, slots: range, *, reduce: bool = False) -> list[Transfer]:
    """Return the transfer of `slots` in place: one, or none if there is nothing to move."""
    if not slots:
        return []
    return [Transfer(src, dst, slots.start, slots.start, reduce, len(slots))]


def backwards(transfers: Sequence[Transfer], *, reduce: bool) -> list[Transfer]:
    """Return the in-place transfers in reverse, from receiver to sender.

    Multicast trees become reduction (or gather) trees: broadcast becomes reduce, allgather becomes
    reduce_scatter, scatter becomes gather.
    """
    return [
        t._replace(src=t.dst, dst=t.src, src_slot=t.dst_slot, dst_slot=t.src_slot, reduce=reduce)
        for t in reversed(transfers)
    ]


def pipelined(chains: Sequence[Sequence[Iterable[Transfer]]], lag: int) -> tuple[Transfer, ...]:
    """Interleave chains of stages (one chain a chunk, in chunk order) into one global order.

    Stage s of chain k comes at ``k + s * lag``: while a chunk is in its last stage, later chunks
    are already in their first. A lane runs in this order, so `lag` limits how far the early stages
    run ahead on a lane that carries several stages: unlimited if large, not at all with 0.
    """
    keyed = [
        (k + stage * lag, stage, k) for k, chain in enumerate(chains) for stage in range(len(chain))
    ]
    keyed.sort()
    return tuple(t for _, stage, k in keyed for t in chains[k][stage])
