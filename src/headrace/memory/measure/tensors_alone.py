"""A model as a function of tensors alone, as it is traced.

Constants among the arguments (None, numbers, texts) are bound, and a module that has several names
occurs once: torch would swap the parameters of each name, and set back the traced ones of the
first where it wants the model's own.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


class TensorsAlone(nn.Module):
    """A model with arguments, whose call takes the tensors among these.

    Parameters
    ----------
    call : of the model; is called with all arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Callable[..., Any],
    ) -> None:
        super().__init__()
        for shared in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            self.__dict__[shared] = getattr(model, shared)
        # not as a submodule: names would get a prefix
        self.__dict__["_model_and_call"] = model, call
        self._leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))

    @property
    def _own(self) -> tuple[nn.Module, Callable[..., Any]]:
        return self.__dict__["_model_and_call"]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Tensors of the arguments, in the order in which a call takes them."""
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run the model."""
        values = iter(tensors)
        leaves = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        _, call = self._own
        return call(*args, **kwargs)

    def named_parameters(self, *_args: Any, **_options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of each module once, tied ones as often as modules have them."""
        return _named(self._own[0], "_parameters")

    def named_buffers(self, *_args: Any, **_options: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers of each module once."""
        return _named(self._own[0], "_buffers")


def _named(model: nn.Module, kind: str) -> Generator[tuple[str, Any]]:
    for prefix, module in model.named_modules():
        for name, value in getattr(module, kind).items():
            if value is not None:
                yield f"{prefix}.{name}" if prefix else name, value
