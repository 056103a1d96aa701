"""Calls through torch's dispatcher, for torch's tools that observe them there.

A call of Gloo passes the operators `c10d::*`, where the profiler records names, shapes and types,
and where hooks run (the flight recorder's, the NaN check's, `register_pre_hook`'s). A group written
in Python bypasses them, which is up to 5 us faster. So calls of a `HeadraceGroup` are dispatched
only while they are observed: torch's C++ implementation of the method calls the operator, and its
kernel the backend of the tensors' device, here a `Dispatched`, which calls the group's method.
Results and errors are the same.

Operators may also be taken by a dispatch mode (a FakeTensorMode, the tracer of `make_fx`, a
CommDebugMode), by a transform of `torch.func`, or by a class of tensors with a `__torch_dispatch__`
of its own. Calls under the first two, and on such tensors, are dispatched, too; whether the group's
method is then called, once or more often, is theirs to decide.
"""
# pyright: reportPrivateUsage=false

import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C import (
    _functorch,  # pyright: ignore[reportAttributeAccessIssue]
    _len_torch_dispatch_stack,
)
from torch._C._distributed_c10d import Backend, OpType  # pyright: ignore[reportAttributeAccessIssue]

from headrace.accelerators import has_gpu
from headrace.collectives.run.torch.caller import DONE
from headrace.collectives.run.torch.calls import ALIASES, Calls
from headrace.collectives.run.torch.overloads import METHODS, overloaded
from headrace.collectives.run.torch.spans import profiling
from headrace.collectives.run.torch.staging import first_tensor, tensors_in
from headrace.collectives.run.torch.untraced import untraced

_Group = TypeVar("_Group", bound=Calls)
_AllreduceOptions = dist.AllreduceOptions
_Tensor = torch.Tensor

_PLAIN = _Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]

_modes = _len_torch_dispatch_stack
"""Return the number of dispatch modes that are active in this thread."""
_transform: Callable[[], int | None] = _functorch.maybe_current_level
"""Return the level of the transform of torch.func that this thread runs; None outside of all."""

OPERATIONS: Mapping[str, int] = {
    "allreduce": int(OpType.ALLREDUCE),
    "allreduce_coalesced": int(OpType.ALLREDUCE),
    "broadcast": int(OpType.BROADCAST),
    "reduce": int(OpType.REDUCE),
    "allgather": int(OpType.ALLGATHER),
    "all_gather_single": int(OpType.ALLGATHER),
    "allgather_coalesced": int(OpType.ALLGATHER_COALESCED),
    "all_gather_single_coalesced": int(OpType.ALLGATHER_COALESCED),
    "gather": int(OpType.GATHER),
    "gather_single": int(OpType.GATHER),
    "scatter": int(OpType.SCATTER),
    "reduce_scatter": int(OpType.REDUCE_SCATTER),
    "reduce_scatter_single": int(OpType.REDUCE_SCATTER),
    "reduce_scatter_single_coalesced": int(OpType.REDUCE_SCATTER),
    "alltoall": int(OpType.ALLTOALL),
    "all_to_all_single": int(OpType.ALLTOALL),
    "barrier": int(OpType.BARRIER),
    "send": int(OpType.SEND),
    "recv": int(OpType.RECV),
    "recv_anysource": int(OpType.RECVANYSOURCE),
}
"""Name of a method of `Calls` -> type of its works: that of Gloo, where Gloo has one."""


class _Under(threading.local):
    """Call of a thread through the dispatcher.

    Attributes
    ----------
    way : whether one is under way; nested calls are part of it.
    work : result of the group's method, if it was called. torch's C++ wraps it, and the wrapper has
        neither its exception nor its result.
    """

    way = False
    work: dist.Work | None = None

    def __enter__(self) -> None:
        self.way = True

    def __exit__(self, *_: object) -> None:
        self.way, self.work = False, None


under = _Under()


@untraced
class Dispatched(Backend):
    """Backend of a `HeadraceGroup` in torch's C++: forwards calls to the group's methods."""

    def __init__(self, calls: Calls) -> None:
        Backend.__init__(self, calls.rank(), calls.size())
        self._calls = weakref.ref(calls)

    def getBackendName(self) -> str:  # noqa: N802 - called from C++ by this name
        return "headrace"

    @property
    def options(self) -> Backend.Options:
        """Options, as torch's flight recorder asks for: torch's own property of them calls itself.

        Up to Python 3.11 that ended in a RecursionError that torch caught, then in a full stack.
        """
        return self._owner().options

    def _get_sequence_number_for_group(self) -> int:
        return self._owner()._get_sequence_number_for_group()

    def _owner(self) -> Calls:
        calls = self._calls()
        assert calls is not None  # it owns this
        return calls


def _passed_on(name: str) -> Callable[..., dist.Work]:
    call: Callable[..., dist.Work] = getattr(Calls, name)

    def method(self: Dispatched, *args: Any) -> dist.Work:
        work = under.work = call(self._calls(), *map(_unwrapped, args))
        return work

    return untraced(method)


def _unwrapped(arg: Any) -> Any:
    """Return an argument without torch.func's wrappers, which are left in nested lists."""
    if isinstance(arg, list):
        return [_unwrapped(part) for part in arg]
    while isinstance(arg, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(arg):
        arg = _functorch.get_unwrapped(arg)
    return arg


for _name in OPERATIONS:
    setattr(Dispatched, _name, _passed_on(_name))
Dispatched.allreduce_sparse = Dispatched.allreduce  # type: ignore[attr-defined]


def observable(group: type[_Group]) -> type[_Group]:
    """Make the calls of a class of groups observable by torch's tools, in all their overloads.

    Their works get types.
    """
    for name, kind in OPERATIONS.items():
        method = _observed(name, kind)
        setattr(group, name, _briefly(method) if name == "allreduce" else method)
    for alias, name in ALIASES.items():
        setattr(group, alias, property(_alias(alias, name)))
    return group


def callable_in_all_overloads(backend: type[_Group]) -> type[_Group]:
    """Give a class of backends the calls in all their overloads."""
    for name in METHODS:
        setattr(backend, name, untraced(overloaded(name, getattr(Calls, name))))
    for alias, name in ALIASES.items():
        setattr(backend, alias, getattr(backend, name))
    return backend


def _alias(alias: str, name: str) -> Callable[[Any], Any]:
    def attribute(self: Any) -> Any:
        # torch's C++ looks up overrides of the alias, too: return its own, to avoid recursion
        return getattr(dist.ProcessGroup if under.way else self, alias if under.way else name)

    return untraced(attribute)


def _observed(name: str, kind: int) -> Callable[..., dist.Work]:
    call: Callable[..., dist.Work] = getattr(Calls, name)
    dispatch: Callable[..., dist.Work] = getattr(dist.ProcessGroup, name)
    signatures = METHODS[name]
    count, last = signatures.count, signatures.last

    def method(self: Any, *args: Any, **kwargs: Any) -> dist.Work:
        # as `overloaded`, which would cost another call
        if kwargs or len(args) != count or type(args[-1]) is not last:
            args = tuple(signatures.arguments(args, kwargs))
        if (self.observed or profiling() or _intercepted(args)) and _dispatches(args):
            with under:
                operators_work = dispatch(self, *args)
                work = under.work
            if work is None:  # as under a FakeTensorMode
                return operators_work
        else:
            work = call(self, *args)
        if work is not DONE:
            work.op_type = kind  # type: ignore[attr-defined]
        return work

    # pybind11 calls torch's implementation, and not this override again, if the calling function
    # has the override's name
    in_cpp = "recvAnysource" if name == "recv_anysource" else name
    method.__code__ = method.__code__.replace(co_name=in_cpp)
    return untraced(method)


def _briefly(allreduce: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """Return the observed `allreduce` at half the cost while it is not observed."""
    call, kind = Calls.allreduce, OPERATIONS["allreduce"]

    def method(
        self: Any, tensors: Any = None, opts: Any = None, *more: Any, **named: Any
    ) -> dist.Work:
        if (
            type(opts) is not _AllreduceOptions
            or self.observed
            or profiling()
            or _modes()
            or _transform() is not None
            or type(tensors[0]) is not _Tensor
        ):
            leading = (tensors, opts, *more) if opts is not None else (tensors,)
            return allreduce(self, *(() if tensors is None else leading), **named)
        work = call(self, tensors, opts)
        if work is not DONE:
            work.op_type = kind  # type: ignore[attr-defined]
        return work

    return untraced(method)


def _intercepted(args: Any) -> bool:
    """Return whether torch's dispatcher may pass these arguments to others before a backend."""
    if _modes() or _transform() is not None:
        return True
    tensor = first_tensor(args)
    return tensor is not None and _overrides(tensor)


def _overrides(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not _PLAIN  # pyright: ignore[reportAttributeAccessIssue]


def _dispatches(args: Any) -> bool:
    """Return whether the dispatcher serves these arguments as the group's method would, or better.

    It copies conjugate and negative views, and the copies would get the results. It knows no
    collective of a DTensor or a nested tensor.
    """
    if under.way:
        return False
    devices = _device_kinds()
    return all(
        (tensor.device.type in devices or _overrides(tensor))
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
        and not hasattr(type(tensor), "to_local")
        for tensor in tensors_in(args)
    )


@functools.cache
def _device_kinds() -> tuple[str, ...]:
    return ("cpu", "cuda") if has_gpu() else ("cpu",)


def register_backend(group: Any) -> Dispatched:
    """Register a backend of `group` for torch's dispatcher; returns it, for the group to keep."""
    backend = Dispatched(group)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    for kind in _device_kinds():
        group._register_backend(torch.device(kind), custom, backend)
    group._set_default_backend(custom)
    return backend
