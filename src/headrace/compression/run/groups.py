"""Process groups of a hook's own: of the ranks of another group, with connections of their own."""

# torch offers no name of a group that only its ranks agree on
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from headrace.compression.errors import CompressionError

_FIRST_COUNT = 1 << 20  # of groups: above those that a program makes
_groups_made = 0


def same_ranks(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return another process group of a group's ranks, backend and timeout; a collective of them.

    Raises
    ------
    CompressionError : this version of torch names groups in another way.
    """
    global _groups_made
    counts: list[Any] = [None] * group.size()
    dist.all_gather_object(counts, _groups_made, group=group)
    _groups_made = 1 + max(counts)
    with _counted(_FIRST_COUNT + _groups_made):
        new_group = dist.new_group(
            dist.get_process_group_ranks(group),
            backend=dist.get_backend(group),
            timeout=group._get_backend(torch.device("cpu")).options._timeout,
            use_local_synchronization=True,
        )
    assert isinstance(new_group, dist.ProcessGroup)
    return new_group


def end_group(group: dist.ProcessGroup) -> None:
    """Destroy a process group, unless that was done: with the job's group torch destroys all."""
    if group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


@contextmanager
def _counted(count: int) -> Generator[None]:
    """Have torch take `count` for the number of groups that this rank has made.

    torch 2.14 and 2.15 name a group after that number, ``world.group_count``, which ranks outside
    of the group need not share: it is set to one that the group's ranks agree on, and restored for
    later groups.
    """
    world = dist.distributed_c10d._world
    before = getattr(world, "group_count", None)
    if not isinstance(before, int):
        raise CompressionError(
            f"torch {torch.__version__} does not count process groups as torch 2.14 and 2.15 do, "
            'which when="during" needs: use one of these, or when="after"'
        )
    world.group_count = count
    try:
        yield
    finally:
        world.group_count = before
