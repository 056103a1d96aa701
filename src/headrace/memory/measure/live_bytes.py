"""Bytes of storages that are alive while code runs on fake tensors."""

# pyright: reportPrivateUsage=false

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that were made and are alive, each counted once.

    Parameters
    ----------
    rounding : granularity of the device's allocator, in bytes.

    Attributes
    ----------
    now : bytes that are alive.
    """

    def __init__(self, rounding: int = 1) -> None:
        super().__init__()
        self.now = 0
        self._rounding = rounding
        self._bytes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.note(results)
        return results

    def note(self, tensors: Any) -> None:
        """Count the storages of some tensors."""
        for tensor in pytree.tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._bytes:
                    self._bytes[storage._cdata] = self._rounded(storage.nbytes())
                    self._changed(storage._cdata, self._bytes[storage._cdata])
                    weakref.finalize(storage, self._free, storage._cdata)

    def bytes_of(self, tensors: Any) -> int:
        """Return the bytes that are counted for some tensors."""
        addresses = {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}
        return sum(self._bytes.get(address, 0) for address in addresses)

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._rounding) * self._rounding

    def _changed(self, storage: int, nbytes: int) -> None:  # noqa: ARG002
        """Count bytes of a storage that came, or went where they are negative."""
        self.now += nbytes

    def _free(self, storage: int) -> None:
        self._changed(storage, -self._bytes.pop(storage, 0))


class LiveKinds(LiveBytes):
    """Live bytes by what they hold, with those at the peak.

    Attributes
    ----------
    at_peak : by kind; storages without a name are "activations".
    most : of each kind at any time.
    """

    ACTIVATIONS = "activations"

    def __init__(self, rounding: int = 1) -> None:
        super().__init__(rounding)
        self._kinds: dict[int, str] = {}
        self._now: Counter[str] = Counter()
        self._peak = 0
        self.at_peak: Mapping[str, int] = {}
        self.most: Counter[str] = Counter()

    def name(self, kind: str, tensors: Any) -> None:
        """Count the storages of some tensors as of a kind."""
        self.note(tensors)
        for tensor in pytree.tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()._cdata
                earlier = self._kinds.get(storage, self.ACTIVATIONS)
                self._now[earlier] -= self._bytes[storage]
                self._kinds[storage] = kind
                self._now[kind] += self._bytes[storage]
                self.most[kind] = max(self.most[kind], self._now[kind])

    def _changed(self, storage: int, nbytes: int) -> None:
        super()._changed(storage, nbytes)
        kind = self._kinds.get(storage, self.ACTIVATIONS)
        self._now[kind] += nbytes
        self.most[kind] = max(self.most[kind], self._now[kind])
        if nbytes < 0:
            self._kinds.pop(storage, None)
        elif self.now > self._peak:
            self._peak = self.now
            self.at_peak = dict(self._now)
