"""Process group for torch, or backend of one that has other backends, too."""
# torch's stubs name parameters otherwise than its callers, which pass them by position, and
# declare as methods members that its callers also accept as properties.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore

from headrace.accelerators import has_gpu
from headrace.collectives.run.torch.caller import Caller
from headrace.collectives.run.torch.calls import Calls
from headrace.collectives.run.torch.dispatch import (
    callable_in_all_overloads,
    observable,
    register_backend,
)
from headrace.collectives.run.torch.untraced import untraced
from headrace.errors import InputError

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")


@untraced
@observable
class HeadraceGroup(Calls, dist.ProcessGroup):
    """Process group of headrace alone, for all devices that it supports.

    torch's Python layer calls it directly, not through C++, unless torch's tools observe it.
    """

    def __init__(
        self, caller: Caller, name: str, store: Any, connect_again: Callable[[str, float], Caller]
    ) -> None:
        dist.ProcessGroup.__init__(self, caller.executor.rank, caller.executor.ranks)
        Calls.__init__(self, caller, name, store, connect_again)
        self._just_split = False
        self._splits = 0
        self._dispatched = register_backend(self)

    def getGroupName(self) -> str:  # noqa: N802 - called from C++ by this name
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        # While it makes a group, torch attaches its flight recorder to every group that has
        # devices, by default. It would record no calls unless it is enabled.
        if not (self.observed or self._just_split or self in dist.distributed_c10d._world.pg_map):
            return []
        return [_CPU, _CUDA] if has_gpu() else [_CPU]

    def _get_backend(self, device: torch.device) -> "HeadraceGroup":
        try:
            check_device(torch.device(device).type)
        except InputError as error:
            raise RuntimeError(str(error)) from None  # caught by torch
        self._just_split = False
        return self

    def get_group_store(self) -> Any:
        """Return the store that torch made the group with."""
        return None if self.origin is None else self.origin.store

    def register_pre_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Register a hook to run before every call."""
        self.observed = True
        super().register_pre_hook(hook_id, hook)

    def register_post_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Register a hook to run when a call was begun."""
        self.observed = True
        super().register_post_hook(hook_id, hook)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,  # noqa: ARG002 - all it can have
    ) -> "HeadraceGroup | None":
        """Make a group of some ranks of this group; None if this rank is not one of them.

        All members of the new group have to call it, with the same ranks in the same order.

        Raises
        ------
        InputError : the ranks are not different ranks of this group.
        CommunicationError : naming the ranks that did not arrive in time.
        """
        if group_name is None or group_desc is None:  # numbered, as torch does it
            group_name = group_name or f"{self._name}:split:{self._splits}"
            group_desc = group_desc or f"{self.group_desc}:split:{self._splits}"
            self._splits += 1
        if timeout is None and opts is not None:
            timeout = opts._timeout
        store = PrefixStore(f"{group_name}/", self.get_group_store())
        part: HeadraceGroup | None = self._split_off(store, ranks, group_name, timeout)
        if part is not None:
            part._set_group_desc(group_desc)
            # torch looks up a backend by its devices, and then attaches its recorder to the group
            part._just_split = True
        return part

    _set_default_timeout = Calls.set_timeout


@untraced
@callable_in_all_overloads
class HeadraceBackend(Calls, Backend):
    """Backend for one device of a process group, as in "cpu:headrace,cuda:nccl"."""

    def __init__(
        self, caller: Caller, name: str, store: Any, connect_again: Callable[[str, float], Caller]
    ) -> None:
        Backend.__init__(self, caller.executor.rank, caller.executor.ranks)
        Calls.__init__(self, caller, name, store, connect_again)

    def split(self, store: Any, ranks: Sequence[int], opts: Backend.Options) -> Any:
        """Make the backend of a group of some ranks, called from C++.

        Raises
        ------
        InputError : this rank is not one of them. torch's C++ allows null for this case, but
            dereferences it if Python returned it.
        """
        part = self._split_off(store, ranks, opts.group_name, opts._timeout)
        if part is None:
            raise InputError(
                f"rank {self._rank} is in no part of the group that is to be split, and torch ends "
                "the process then if the group has another backend besides headrace: give every "
                'rank a part, use new_group(), or make the group with "headrace" alone'
            )
        return part

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Run `Calls.monitored_barrier`, called from C++."""
        super().monitored_barrier(opts.timeout, wait_all_ranks)


def check_device(kind: str) -> None:
    """Raise InputError unless tensors of devices of this kind are supported here."""
    if kind == "cpu":
        return
    if kind != "cuda":
        raise InputError(
            f"the headrace backend does not support {kind} tensors, but CPU tensors, and CUDA "
            f'tensors through host memory: give {kind} another backend, or use "cpu:headrace" '
            "and pass tensor.cpu()"
        )
    if not torch.cuda.is_available():
        why = (
            "this torch is built without CUDA"
            if not torch.backends.cuda.is_built()
            else "torch finds no GPU (see nvidia-smi, CUDA_VISIBLE_DEVICES)"
        )
        raise InputError(
            f"the headrace backend does not support CUDA tensors here: {why}; "
            'init_process_group("headrace") supports CPU tensors'
        )
