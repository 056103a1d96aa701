"""Shapes of a model's outputs by the length of its call: which dimensions are positions."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils import _pytree as pytree

from headrace.memory.measure.attributes import argument_content
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.refuse import BY_VALUES
from headrace.memory.measure.running_averages import averages_as_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Shape of a tensor as a function of the call's length.

    Attributes
    ----------
    sizes : of all dimensions; of those that grow, beside the length.
    grows : whether the length is to be added, by dimension.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    grows: tuple[bool, ...]

    @classmethod
    def between(
        cls, tensor: Tensor, longer_tensor: Tensor, length: int, longer: int
    ) -> "TensorLayout | None":
        """Read the layout from the tensors of two calls; None if there is none."""
        if tensor.dim() != longer_tensor.dim() or tensor.dtype != longer_tensor.dtype:
            return None
        differences = [b - a for a, b in zip(tensor.shape, longer_tensor.shape, strict=True)]
        if not {0, longer - length}.issuperset(differences):
            return None
        grows = tuple(map(bool, differences))
        sizes = tuple(size - length * grow for size, grow in zip(tensor.shape, grows, strict=True))
        return cls(dtype=tensor.dtype, sizes=sizes, grows=grows)

    def shape(self, length: int) -> tuple[int, ...]:
        """Return the shape in a call of a length."""
        return tuple(
            size + length * grow for size, grow in zip(self.sizes, self.grows, strict=True)
        )

    def is_of(self, leaf: Any, length: int) -> bool:
        """Return whether a leaf of a call's outputs has this type and shape."""
        if not isinstance(leaf, Tensor):
            return False
        return leaf.dtype == self.dtype and leaf.shape == self.shape(length)

    def trimmed(self, tensor: Tensor, length: int) -> Tensor:
        """Return a longer call's tensor without the positions behind a length."""
        for dimension, (size, grows) in enumerate(zip(self.shape(length), self.grows, strict=True)):
            if grows:
                tensor = tensor.narrow(dimension, 0, size)
        return tensor


@dataclass(frozen=True, slots=True)
class Constant:
    """Content of a leaf that is no tensor, in calls of all lengths."""

    content: Hashable

    def is_of(self, leaf: Any, length: int) -> bool:  # noqa: ARG002
        """Return whether a leaf of a call's outputs has this content."""
        return not isinstance(leaf, Tensor) and argument_content(leaf) == self.content

    def trimmed(self, leaf: Any, length: int) -> Any:  # noqa: ARG002
        """Return the leaf."""
        return leaf


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Shapes of all tensors in a model's outputs, nested ones too, as functions of the length.

    Attributes
    ----------
    spec : structure of the outputs.
    leaves : of each leaf.
    """

    spec: pytree.TreeSpec
    leaves: tuple[TensorLayout | Constant, ...]

    @classmethod
    def between(
        cls, shorter_outputs: Any, longer_outputs: Any, *, length: int, longer: int
    ) -> "OutputLayout | None":
        """Read the layout from the outputs of two calls.

        Parameters
        ----------
        length, longer : of the two calls.

        Returns
        -------
        None where the structures differ, or a size differs by more or less than the lengths do: by
        twice as much, or by the product of the lengths.
        """
        leaves, spec = pytree.tree_flatten(shorter_outputs)
        longer_leaves, longer_spec = pytree.tree_flatten(longer_outputs)
        if spec != longer_spec:
            return None
        layouts = [
            _leaf_layout(leaf, longer_leaf, length, longer)
            for leaf, longer_leaf in zip(leaves, longer_leaves, strict=True)
        ]
        known = tuple(layout for layout in layouts if layout is not None)
        return cls(spec, known) if len(known) == len(layouts) else None

    def is_of(self, outputs: Any, length: int) -> bool:
        """Return whether outputs of a call of a length have this layout."""
        leaves, spec = pytree.tree_flatten(outputs)
        return spec == self.spec and all(
            layout.is_of(leaf, length) for leaf, layout in zip(leaves, self.leaves, strict=True)
        )

    def trimmed(self, outputs: Any, length: int) -> Any:
        """Return outputs of a longer call without the positions behind a length."""
        leaves = pytree.tree_leaves(outputs)
        return pytree.tree_unflatten(
            [
                layout.trimmed(leaf, length)
                for leaf, layout in zip(leaves, self.leaves, strict=True)
            ],
            self.spec,
        )


def output_shapes(model: nn.Module, arguments: Mapping[str, Any]) -> Any:
    """Run a model on fake tensors, and return its outputs; None if that fails.

    Parameters
    ----------
    arguments : by name.
    """
    try:
        return _fake_outputs(model, arguments)
    except Exception as error:
        if type(error).__name__ not in BY_VALUES:
            return None
    with torch.compiler._compile_session_context():  # pyright: ignore[reportPrivateUsage]
        try:
            return _fake_outputs(model, arguments)
        except Exception:
            return None


def _fake_outputs(model: nn.Module, arguments: Mapping[str, Any]) -> Any:
    with (
        preserved(model),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        averages_as_tensors(model),
    ):
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        state: dict[str, Tensor] = {
            name: mode.from_tensor(tensor) for name, tensor in named.items()
        }
        fake_arguments = pytree.tree_map_only(Tensor, mode.from_tensor, dict(arguments))
        return functional_call(model, state, (), fake_arguments)


def _leaf_layout(
    leaf: Any, longer_leaf: Any, length: int, longer: int
) -> TensorLayout | Constant | None:
    if isinstance(leaf, Tensor) and isinstance(longer_leaf, Tensor):
        return TensorLayout.between(leaf, longer_leaf, length, longer)
    constant = Constant(argument_content(leaf))
    return constant if constant.is_of(longer_leaf, longer) else None
