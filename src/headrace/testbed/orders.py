"""Rank orders: the host of each rank of a job."""

import random
from collections.abc import Sequence

from headrace.errors import TestbedError

ORDERS = ("rack", "interleaved", "random")
"""Orders by name: rack by rack, one host of every rack in turn, shuffled."""


def resolve_order(
    hosts: Sequence[tuple[str, int]], order: str | Sequence[int], *, seed: int | None = None
) -> list[int]:
    """Return the host index of every rank.

    Parameters
    ----------
    hosts : (name, rack index) of every host.
    order : one of `ORDERS`, host names or indices joined by commas, or a sequence of indices.
    seed : for "random": the same seed gives the same order.

    Raises
    ------
    TestbedError : the order names an unknown host, or one twice.
    """
    every = list(range(len(hosts)))
    if order == "rack":
        return every
    if order == "interleaved":
        racks = [rack for _, rack in hosts]
        return sorted(every, key=lambda index: (racks[:index].count(racks[index]), racks[index]))
    if order == "random":
        random.Random(seed).shuffle(every)
        return every
    items = order.split(",") if isinstance(order, str) else order
    listed = [_index(hosts, item) for item in items]
    if not listed or len(set(listed)) != len(listed):
        raise TestbedError(f"order is {order!r}, needs at least one host and none twice")
    return listed


def _index(hosts: Sequence[tuple[str, int]], item: str | int) -> int:
    names = [name for name, _ in hosts]
    text = str(item).strip()
    if text in names:
        return names.index(text)
    if text.isdigit() and int(text) < len(hosts):
        return int(text)
    raise TestbedError(
        f"order has {item!r}, needs one of {', '.join(ORDERS)}, or hosts joined by commas "
        f"(names or 0 to {len(hosts) - 1}); hosts: {', '.join(names)}"
    )
