"""Padding of a call to the next larger of the lengths that have plans, where that is exact.

Padded positions are masked, and their labels ignored, so that the loss and its gradients are those
of the call as it is, but for rounding. Whether a model keeps to that is tried on its samples before
training: its loss, its other outputs without the added positions, its buffers and its attributes
have to be the same with padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from headrace.memory.measure.arguments import bound_arguments, forward_signature
from headrace.memory.measure.attributes import AttributeReader, argument_content, differing_names
from headrace.memory.measure.positions import PositionsApart
from headrace.memory.measure.preserve import preserved
from headrace.memory.run.output_layout import OutputLayout, output_shapes

_MASK, _LABELS = "attention_mask", "labels"
_IGNORED = -100
"""Label that losses leave out, as of torch's cross entropy."""
_SEQUENCE = 1
"""Dimension of the positions; the first is the batch."""
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Of outputs with padding, relative to the largest element of each, by their type; 2% of others. A
model that attends to padding differs by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedCall:
    """A call in a length that has a plan.

    Attributes
    ----------
    own : arguments of the call as it is, by name.
    arguments : with padding.
    length, larger : positions of the two.
    """

    own: Mapping[str, Any]
    arguments: Mapping[str, Any]
    length: int
    larger: int


class Padding:
    """Lengths with plans, of calls by the names of transformers' arguments.

    Parameters
    ----------
    model : its configuration has the token to pad with, if there is one.
    samples : arguments of the calls that have plans, by name.
    """

    def __init__(self, model: nn.Module, samples: Sequence[Mapping[str, Any]]) -> None:
        token = getattr(getattr(model, "config", None), "pad_token_id", None)
        token = token if isinstance(token, int) else 0
        self._values = {
            "input_ids": token,
            "decoder_input_ids": token,
            _MASK: 0,
            "decoder_attention_mask": 0,
            "token_type_ids": 0,
            _LABELS: _IGNORED,
        }
        self._model = model
        self._parameters = tuple(forward_signature(model).parameters)
        named = [self._named(*bound_arguments(model, (), sample)) for sample in samples]
        self._samples = dict(sorted({_length(sample): sample for sample in named}.items()))
        self._layout: OutputLayout | None = None
        self._lengths: dict[int, tuple[object, bool]] = {}  # that have the layout, by their steps

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, but for those that are None."""
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        return {name: value for name, value in named.items() if value is not None}

    def padded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PaddedCall | None:
        """Return a call in the next larger length.

        None where there is no larger one, or the call has arguments that cannot be padded.
        """
        own = self._named(args, kwargs)
        length = _length(own)
        for larger, sample in self._samples.items():
            if larger > length > 0 and self._is_alike(own, sample, length, larger):
                arguments = {
                    name: self._longer(name, value, larger - length, length)
                    for name, value in own.items()
                }
                return PaddedCall(own=own, arguments=arguments, length=length, larger=larger)
        return None

    def _is_alike(
        self, own: Mapping[str, Any], sample: Mapping[str, Any], length: int, larger: int
    ) -> bool:
        """Return whether a call is a sample's but for the length."""
        if own.keys() != sample.keys() or not {_MASK, _LABELS} <= own.keys():
            return False
        return all(
            _is_longer(value, sample[name], length, larger)
            and (name in self._values or not isinstance(value, Tensor) or value.dim() <= _SEQUENCE)
            for name, value in own.items()
        )

    def _longer(self, name: str, value: Any, count: int, length: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.dim() <= _SEQUENCE or value.shape[_SEQUENCE] != length:
            return value
        inner = (0, 0) * (value.dim() - _SEQUENCE - 1)  # torch counts dimensions from the last one
        return nn.functional.pad(value, (*inner, 0, count), value=self._values[name])

    def is_exact(self) -> bool:
        """Return whether a model's outputs and state are the same with padding, by its samples.

        In the mode that the model is in, but without dropout. Models with statistics over the
        batch, which count padding, and those without a loss, are not exact.
        """
        if any(hasattr(module, "track_running_stats") for module in self._model.modules()):
            return False
        calls = [self.padded((), sample) for sample in list(self._samples.values())[:-1]]
        layouts = [None if call is None else self._exact_layout(call) for call in calls]
        if not layouts or None in layouts or any(layout != layouts[0] for layout in layouts):
            return False
        self._layout = layouts[0]
        return True

    def _exact_layout(self, call: PaddedCall) -> OutputLayout | None:
        """Return the layout of the outputs of a sample; None if they differ with padding."""
        outputs, state = self._run(call.own)
        padded_outputs, padded_state = self._run(call.arguments)
        if not _has_loss(outputs) or not _is_same_state(state, padded_state):
            return None
        layout = OutputLayout.between(
            outputs, padded_outputs, length=call.length, longer=call.larger
        )
        if layout is None or not _are_same(outputs, layout.trimmed(padded_outputs, call.length)):
            return None
        return layout

    def _run(self, arguments: Mapping[str, Any]) -> tuple[Any, "_State"]:
        """Return the outputs of a call, and the buffers and attributes that it leaves."""
        with preserved(self._model), torch.no_grad(), PositionsApart():
            outputs = self._model(**arguments)
            buffers = [buffer.detach().clone() for buffer in self._model.buffers()]
            return outputs, (buffers, AttributeReader(self._model).read())

    def is_trimmable(self, call: PaddedCall, prepared: object) -> bool:
        """Return whether the outputs of a call have the layout that padding was tried with.

        The model runs on fake tensors, once for each length of a step.

        Parameters
        ----------
        prepared : step that runs the padded call.
        """
        return all(
            self._has_layout(arguments, length, prepared)
            for arguments, length in ((call.own, call.length), (call.arguments, call.larger))
        )

    def _has_layout(self, arguments: Mapping[str, Any], length: int, prepared: object) -> bool:
        assert self._layout is not None
        step, has_layout = self._lengths.get(length, (None, False))
        if step is not prepared:
            outputs = output_shapes(self._model, arguments)
            has_layout = self._layout.is_of(outputs, length)
            self._lengths[length] = prepared, has_layout
        return has_layout

    def trimmed(self, outputs: Any, call: PaddedCall) -> Any:
        """Return outputs of a padded call, nested ones too, without the added positions."""
        assert self._layout is not None
        return self._layout.trimmed(outputs, call.length)


_State = tuple[Sequence[Tensor], Mapping[Any, Any]]
"""Buffers of a model, and its attributes."""


def _length(named: Mapping[str, Any]) -> int:
    """Return the positions of a call by name; 0: it has none."""
    ids = named.get("input_ids")
    return ids.shape[_SEQUENCE] if isinstance(ids, Tensor) and ids.dim() == 2 else 0


def _at_length(shape: tuple[int, ...], length: int, larger: int) -> tuple[int, ...]:
    """Return a shape with another length, if it has this one."""
    if len(shape) > _SEQUENCE and shape[_SEQUENCE] == length:
        return (*shape[:_SEQUENCE], larger, *shape[_SEQUENCE + 1 :])
    return shape


def _is_longer(value: Any, sample: Any, length: int, larger: int) -> bool:
    """Return whether a sample's argument is a call's but for the length."""
    if not isinstance(value, Tensor) or not isinstance(sample, Tensor):
        return argument_content(value) == argument_content(sample)
    return value.dtype == sample.dtype and _at_length(tuple(value.shape), length, larger) == tuple(
        sample.shape
    )


def _has_loss(outputs: Any) -> bool:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    return isinstance(loss, Tensor) and not loss.dim()


def _is_same_state(state: _State, padded_state: _State) -> bool:
    return _are_same(state[0], padded_state[0]) and not differing_names(state[1], padded_state[1])


def _are_same(expected: Any, actual: Any) -> bool:
    """Return whether tensors of equal shapes are the same but for rounding."""
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True)
    return all(_is_same(*pair) for pair in pairs if isinstance(pair[0], Tensor))


def _is_same(expected: Tensor, actual: Tensor) -> bool:
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, actual)
    finite = expected[expected.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    tolerance = _TOLERANCE.get(expected.dtype, 0.02) * max(largest, 1e-6)
    return torch.allclose(actual, expected, rtol=0, atol=tolerance, equal_nan=True)
