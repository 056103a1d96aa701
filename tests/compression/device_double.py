"""A double of a GPU: tensors that count as another device's, with a CPU tensor as their memory.

As on a GPU, operators take tensors of one device, and what is copied to host memory is there when
its event is waited for, not before. `Double.waits` has the operators for which a real GPU would
have been waited for, but for those in the functions of `headrace.staging`.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from headrace import staging

aten = torch.ops.aten
DEVICE = torch.device("meta")
"""Of a type that torch guards without a driver; operators on it get here instead."""
_WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
}
_COPIES = {aten.copy_.default, aten._to_copy.default, aten._pin_memory.default}
_STAGED = {"download", "upload"}


class DeviceTensor(Tensor):
    """Tensor of the double."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "DeviceTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with Double.current:
            return func(*args, **(kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


class Double(TorchDispatchMode):
    """While entered, tensors can be made on `DEVICE`.

    Attributes
    ----------
    waits : operators that a GPU would have been waited for, outside of the staging's functions.
    reads : how often the staging's functions have waited.
    used : all operators on the device.
    """

    current: "Double"

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.reads = 0
        self.used: set[Any] = set()
        Double.current = self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves, _ = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        ours = [each for each in tensors if isinstance(each, DeviceTensor)]
        to = kwargs.pop("device", None)
        kwargs.pop("pin_memory", None)
        made_here = DEVICE.type == torch.device(to).type if to is not None else bool(ours)
        if ours and func not in _COPIES:
            mixed = [each for each in tensors if not isinstance(each, DeviceTensor) and each.dim()]
            assert not mixed, f"{func} takes tensors of several devices"
        if ours or made_here:
            self.used.add(func)
        self._note(func, args, ours, made_here)
        inner = {id(each.inner): each for each in ours}
        unwrap = tree_map_only(DeviceTensor, lambda each: each.inner, (args, kwargs))
        if func is aten._pin_memory.default:
            return args[0].clone()
        if func is aten._to_copy.default:
            unwrap = ((unwrap[0][0].clone(),), unwrap[1])  # never the same memory
        found = func(*unwrap[0], **unwrap[1])
        if not made_here and func is not aten.copy_.default:
            return found
        if func is aten.copy_.default:
            return args[0]

        def wrap(each: Tensor) -> Tensor:
            known = inner.get(id(each))
            return DeviceTensor(each) if known is None else known

        return tree_map_only(Tensor, wrap, found)

    def _note(self, func: Any, args: Any, ours: Sequence[Tensor], made_here: bool) -> None:
        waits = bool(ours) and func in _WAITS
        if func is aten.index.Tensor and ours:
            waits = any(i is not None and i.dtype is torch.bool for i in args[1])
        if func is aten._to_copy.default:
            waits = bool(ours) != made_here
        if func is aten.copy_.default:
            waits = len(ours) == 1
        if not waits:
            return
        if _inside_staging():
            self.reads += 1
        else:
            self.waits.append(str(func))


def _inside_staging() -> bool:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in _STAGED and frame.f_globals["__name__"] == staging.__name__:
            return True
        frame = frame.f_back
    return False


class Copied:
    """Event of a copy to host memory, which lands when it is waited for or at the third query."""

    def __init__(self, host: Tensor, values: Tensor) -> None:
        self._host, self._values, self._queries = host, values, 0

    def query(self) -> bool:
        self._queries += 1
        if self._queries == 3:
            self.synchronize()
        return self._queries >= 3

    def synchronize(self) -> None:
        self._host.copy_(self._values)
        self._queries = 3


class Mark:
    """Event of a stream."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


Arrival = Copied | Mark


class LateStaging:
    """Staging whose copies to host memory are wrong until they are waited for.

    Attributes
    ----------
    marks, followed : that were made, and that later work was ordered after.
    beside_marks : made at the end of each `beside`; None where none was made.
    copies : begun, to host memory.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices: list[int | str | torch.device] = list(devices)
        self.marks: list[Arrival] = []
        self.followed: list[Arrival] = []
        self.beside_marks: list[Arrival | None] = []
        self.copies = 0
        self._own = threading.local()

    def room(self, like: Tensor) -> Tensor:
        host = torch.empty(like.shape, dtype=like.dtype)
        host.view(-1).view(torch.uint8).fill_(0x7F)  # neither zero nor a small number
        return host

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Arrival]:
        host, values = self.room(tensor), _memory(tensor).clone()
        self.copies += 1
        return host, Copied(host, values)

    def to_device(self, host: Tensor, tensor: Tensor) -> None:
        _memory(tensor).copy_(host)

    def mark(self) -> Arrival:
        self._own.last = mark = Mark()
        self.marks.append(mark)
        return mark

    def follow(self, mark: Arrival) -> None:
        self.followed.append(mark)

    @contextmanager
    def beside(self, mark: Arrival) -> Iterator[None]:
        self.follow(mark)
        self._own.last = None
        yield
        self.beside_marks.append(self._own.last)

    def keep(self, tensor: Tensor) -> None:
        pass


def _memory(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, DeviceTensor) else tensor


def install(kind: type[LateStaging] = LateStaging) -> LateStaging:
    """Let every tensor's payload be staged, in this process, from now on; for jobs of the CPU."""
    from headrace.compression.codecs import loops
    from headrace.compression.run import exchanger, hook, reduce_scatter

    made = kind()
    for module in (staging, exchanger, hook, reduce_scatter):
        module.staging_of = lambda _device: made  # type: ignore[assignment]
    loops._arrays = lambda *_tensors: []  # type: ignore[assignment]
    return made
