"""Bytes of tensors that live at the same time, counted operation by operation."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """Counts storages that operations make meanwhile, as long as they live.

    Attributes
    ----------
    peak_bytes : most at any time; those from before are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, int] = {}
        self._bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        before = {self._key(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            key = self._key(tensor)
            if key not in self._live and key not in before:
                storage = tensor.untyped_storage()
                self._live[key] = storage.nbytes()
                self._bytes += storage.nbytes()
                weakref.finalize(storage, self._free, key)
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return result

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def _free(self, key: int) -> None:
        self._bytes -= self._live.pop(key)


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [tensor for node in tree for tensor in _tensors(node)]
    return []
