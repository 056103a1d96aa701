"""Runs of a model in which positions of a sequence tell themselves apart, and nothing is dropped.

A sample's ids may all be equal, so that outputs of all positions are. Then an output that is
reversed, or doubled, would look as one that is not. So each position of an embedding gets a vector
of its own.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_DROPOUTS = frozenset(
    {
        torch.dropout,
        functional.dropout,
        functional.dropout1d,
        functional.dropout2d,
        functional.dropout3d,
        functional.alpha_dropout,
        functional.feature_alpha_dropout,
    }
)
_ATTENTION, _DROPOUT_PLACE = functional.scaled_dot_product_attention, 4
_POSITIONS = 1
"""Dimension of the positions; the first is the batch."""


class PositionsApart(TorchFunctionMode):
    """Adds to embeddings what depends on the position alone, and leaves out dropout."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        options = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else options["input"]
        if func is _ATTENTION:
            if len(args) > _DROPOUT_PLACE:
                args = (*args[:_DROPOUT_PLACE], 0.0, *args[_DROPOUT_PLACE + 1 :])
            options.pop("dropout_p", None)
        if func is functional.multi_head_attention_forward:
            options["training"] = False
        results = func(*args, **options)
        if func is functional.embedding and results.dim() > _POSITIONS + 1:
            return results + _vectors(results)
        return results


def _vectors(embedded: Tensor) -> Tensor:
    """Return a vector for each position, of shape [positions, 1, ..., 1, features]."""
    count, features = embedded.shape[_POSITIONS], embedded.shape[-1]
    vectors = torch.outer(torch.arange(1, count + 1), torch.arange(1, features + 1)).sin()
    shape = (count, *[1] * (embedded.dim() - _POSITIONS - 2), features)
    return vectors.to(embedded).reshape(shape)
