"""Recurrent layers in a trace: as products, step by step, with the dropout between layers.

torch's own decomposition leaves that dropout out, and has oneDNN's operator for LSTMs on the CPU,
whose workspace has another size under fake tensors than in a run.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def decomposed(
    function: Callable[..., Any],
    x: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: Any,
    num_layers: int,
    dropout: float,
    train: Any,
    bidirectional: Any,
    batch_first: Any,
) -> Any:
    """Return what a function of `RECURRENT` does; the arguments are its own."""
    with _without_onednn():
        if num_layers < 2 or not (dropout and train):
            options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
            return function(x, hx, params, *options)
        x = x.transpose(0, 1) if batch_first else x
        single = isinstance(hx, Tensor)
        states = [each.chunk(num_layers) for each in ((hx,) if single else hx)]
        count = len(params) // num_layers
        last: list[Sequence[Tensor]] = []
        for layer in range(num_layers):
            first = [each[layer] for each in states]
            own = params[layer * count : (layer + 1) * count]
            options = (has_biases, 1, 0.0, train, bidirectional, False)
            x = nn.functional.dropout(x, dropout) if layer else x
            x, *after = function(x, first[0] if single else first, own, *options)
            last.append(after)
        x = x.transpose(0, 1) if batch_first else x
        return x, *(torch.cat(each) for each in zip(*last, strict=True))


@contextmanager
def _without_onednn() -> Generator[None]:
    """Decompose without oneDNN; kernels of the traced operators are chosen when they run."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
