"""The ideal job (BagPipe, 5.4.1): the same steps with rows that are at every trainer already.

Its results are wrong: each trainer updates rows of its own in its cache, which begin as zeros. No
row is fetched, exchanged or written back, so a step is as short as rows can make it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.embeddings.run.batches import GroupBatch, SlottedRows, TrainerBatch


def without_transfers(parts: Sequence[TrainerBatch]) -> tuple[TrainerBatch, ...]:
    """Return the trainers' parts of a batch such that each has all rows that it uses to itself."""
    return tuple(
        replace(part, groups=tuple(_alone(group, trainer) for group in part.groups))
        for trainer, part in enumerate(parts)
    )


def _alone(group: GroupBatch, trainer: int) -> GroupBatch:
    used = group.used
    return replace(
        group,
        fetched=_none_of(group.fetched),
        evicted=_none_of(group.evicted),
        dirty=_none_of(group.dirty),
        slots=group.slots[:used],
        users=np.full_like(group.users[:used], 1 << trainer),
        next_users=np.zeros_like(group.next_users[:used]),
        owners=np.full_like(group.owners[:used], trainer),
        critical=group.critical[:used],
    )


def _none_of(rows: SlottedRows) -> SlottedRows:
    return SlottedRows(ends=np.zeros_like(rows.ends), ids=rows.ids[:0], slots=rows.slots[:0])
