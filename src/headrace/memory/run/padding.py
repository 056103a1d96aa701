"""Padding of a call to the next larger of the lengths that have plans, where that is exact.

Padded positions are masked, and their labels ignored, so that the loss and its gradients are those
of the call as it is, but for rounding. Whether a model keeps to that is tried on its samples before
training: its loss has to be the same with padding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.memory.measure.arguments import forward_signature
from headrace.memory.measure.preserve import preserved

_MASK, _LABELS = "attention_mask", "labels"
_IGNORED = -100
"""Label that losses leave out, as of torch's cross entropy."""
_SEQUENCE = 1
"""Dimension of the positions; the first is the batch."""
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Of the loss with padding, relative, by its type; 2% of others. A model that attends to padding
differs by more."""

PaddedCall = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Mapping[str, Any], int, int] | None]
"""Arguments of a call -> those of a longer one, the own length and the other; see `padded`."""


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
        self._parameters = tuple(forward_signature(model).parameters)
        lengths = {_length(sample): sample for sample in samples}
        self._samples = dict(sorted(lengths.items()))

    def padded(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], int, int] | None:
        """Return a call's arguments in the next larger length, its own length, and that length.

        None where there is no larger one, or the call has arguments that cannot be padded.
        """
        named = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        given = {name: value for name, value in named.items() if value is not None}
        length = _length(given)
        for larger, sample in self._samples.items():
            if larger > length > 0 and self._is_alike(given, sample, length, larger):
                return (
                    {
                        name: self._longer(name, value, larger - length, length)
                        for name, value in given.items()
                    },
                    length,
                    larger,
                )
        return None

    def _is_alike(
        self, given: Mapping[str, Any], sample: Mapping[str, Any], length: int, larger: int
    ) -> bool:
        """Return whether a call is a sample's but for the length."""
        if given.keys() != sample.keys() or not {_MASK, _LABELS} <= given.keys():
            return False
        return all(
            isinstance(value, Tensor)
            and isinstance(sample[name], Tensor)
            and value.dtype == sample[name].dtype
            and _at_length(tuple(value.shape), length, larger) == tuple(sample[name].shape)
            and (name in self._values or value.dim() <= _SEQUENCE)
            for name, value in given.items()
        )

    def _longer(self, name: str, value: Tensor, count: int, length: int) -> Tensor:
        if value.dim() <= _SEQUENCE or value.shape[_SEQUENCE] != length:
            return value
        return nn.functional.pad(value, (0, count), value=self._values[name])

    def is_exact(self, model: nn.Module) -> bool:
        """Return whether a model's loss is the same with padding, by its samples.

        In evaluation, so that no dropout differs. Models with statistics over the batch, which
        count padding, and those without a loss, are not exact.
        """
        if any(hasattr(module, "track_running_stats") for module in model.modules()):
            return False
        tried = [self.padded((), sample) for sample in list(self._samples.values())[:-1]]
        if not tried or None in tried:
            return False
        with preserved(model), torch.no_grad():
            model.eval()
            return all(
                _same_loss(model(**sample), model(**padded[0]))
                for sample, padded in zip(self._samples.values(), tried, strict=False)
                if padded is not None
            )


def trimmed(outputs: Any, length: int, larger: int) -> Any:
    """Return outputs by name of a padded call, without the positions that were added."""
    for name, output in list(outputs.items()):
        if isinstance(output, Tensor) and output.shape[_SEQUENCE : _SEQUENCE + 1] == (larger,):
            outputs[name] = output[:, :length]
    return outputs


def _length(named: Mapping[str, Any]) -> int:
    """Return the positions of a call by name; 0: it has none."""
    ids = named.get("input_ids")
    return ids.shape[_SEQUENCE] if isinstance(ids, Tensor) and ids.dim() == 2 else 0


def _at_length(shape: tuple[int, ...], length: int, larger: int) -> tuple[int, ...]:
    """Return a shape with another length, if it has this one."""
    if len(shape) > _SEQUENCE and shape[_SEQUENCE] == length:
        return (*shape[:_SEQUENCE], larger, *shape[_SEQUENCE + 1 :])
    return shape


def _same_loss(plain: Any, padded: Any) -> bool:
    expected, actual = (
        outputs.get("loss") if isinstance(outputs, Mapping) else None for outputs in (plain, padded)
    )
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor) or expected.dim():
        return False
    tolerance = _TOLERANCE.get(expected.dtype, 0.02)
    return bool((actual - expected).abs() <= tolerance * expected.abs().clamp(min=1e-6))
