"""What torch gets: a process group of its own, or a backend of one that has others beside it."""
# torch's stubs name parameters otherwise than its callers do, who pass them by position, and
# declare as methods what its callers also accept as properties.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from headrace.collectives.run.backend import Calls
from headrace.collectives.run.caller import Caller
from headrace.collectives.run.untraced import untraced
from headrace.errors import InputError

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")


@untraced
class HeadraceGroup(Calls, dist.ProcessGroup):
    """A process group that is headrace's alone, for all devices that it serves.

    torch's Python layer calls it without a detour through C++.
    """

    def __init__(self, caller: Caller, name: str, store: Any) -> None:
        dist.ProcessGroup.__init__(self, caller.executor.rank, caller.executor.ranks)
        Calls.__init__(self, caller, name, store)

    def getGroupName(self) -> str:  # noqa: N802 - called from C++ by this name
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        # While it makes a group, torch hangs its flight recorder on every group that has devices.
        # The recorder hooks into torch's dispatcher, which calls to this group do not pass, and
        # its set-up fails on groups without a C++ backend.
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        return [_CPU, _CUDA] if torch.cuda.is_available() else [_CPU]

    def _get_backend(self, device: torch.device) -> "HeadraceGroup":
        try:
            check_device(torch.device(device).type)
        except InputError as error:
            raise RuntimeError(str(error)) from None  # which torch looks out for
        return self

    _set_default_timeout = Calls.set_timeout


@untraced
class HeadraceBackend(Calls, Backend):
    """The part of a process group that serves one device, as in "cpu:headrace,cuda:nccl"."""

    def __init__(self, caller: Caller, name: str, store: Any) -> None:
        Backend.__init__(self, caller.executor.rank, caller.executor.ranks)
        Calls.__init__(self, caller, name, store)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Do what `Calls.monitored_barrier` does, called from C++."""
        timeout = opts.timeout if opts.timeout > timedelta(0) else None
        super().monitored_barrier(timeout, wait_all_ranks)


def check_device(kind: str) -> None:
    """Raise InputError unless tensors of devices of this kind can be served here."""
    if kind == "cpu":
        return
    if kind != "cuda":
        raise InputError(
            f"the headrace backend does not serve {kind} tensors, but CPU tensors, and CUDA "
            f'tensors by way of host memory: give {kind} another backend, or use "cpu:headrace" '
            "and pass tensor.cpu()"
        )
    if not torch.cuda.is_available():
        why = (
            "this torch is built without CUDA"
            if not torch.backends.cuda.is_built()
            else "torch finds no GPU (see nvidia-smi, CUDA_VISIBLE_DEVICES)"
        )
        raise InputError(
            f"the headrace backend cannot serve CUDA tensors here: {why}; "
            'init_process_group("headrace") serves CPU tensors'
        )
