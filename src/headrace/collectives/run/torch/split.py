"""Groups of some ranks of a group, made by its members alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from headrace.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOptions:
    """Options of a part of a group, like those that torch passes for other groups."""

    store: Any
    group_rank: int
    group_size: int
    global_ranks_in_group: list[int]
    timeout: timedelta
    group_id: str
    process_group: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Parameters that a group was made from, to make parts of it.

    Attributes
    ----------
    store : the group's, from torch.
    device : kind of device that the group was made for.
    members : its ranks in the whole job.
    make : makes a part.
    """

    store: Any
    device: str
    members: tuple[int, ...]
    make: Callable[[PartOptions], Any]

    def part(
        self, store: Any, rank: int, ranks: Sequence[int], name: str, timeout: timedelta
    ) -> Any:
        """Make the part of `ranks`, in their order; None if this rank is not one of them.

        Parameters
        ----------
        store : for the part alone.
        rank, ranks : this rank and the part's, by their numbers in the group.

        Raises
        ------
        InputError : `ranks` are not different ranks of the group.
        """
        members = len(self.members)
        if len(set(ranks)) < len(ranks) or not all(0 <= member < members for member in ranks):
            raise InputError(
                f"a group of {members} ranks is to be split off with ranks {list(ranks)}, needs "
                f"different ones from 0 to {members - 1}"
            )
        if rank not in ranks:
            return None
        return self.make(
            PartOptions(
                # as torch does: the prefix of the store is the kind of device
                store=PrefixStore(f"{self.device}/", store),
                group_rank=list(ranks).index(rank),
                group_size=len(ranks),
                global_ranks_in_group=[self.members[member] for member in ranks],
                timeout=timeout,
                group_id=name,
            )
        )
