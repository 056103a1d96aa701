"""Compared methods that are not the product's: heads that are dropped, pruned, or reused whole.

Each computes the attention of a sample from the probabilities of all heads: what it would not
compute is not saved, only its loss is measured. Queries see what the methods know by then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace import _native
from headrace.attention.models import collecting
from headrace.attention.plan.plan import FIRST_TOKENS

_PRUNED_TOKENS, _PRUNED_HEADS = 0.5, 0.1
"""Shares that SpAtten's pruning reaches in the last layer, rising from none in the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSample:
    """One layer's attention of one sample, before a method changes it.

    Attributes
    ----------
    layer, layers : index of the layer, and their number.
    scores : [heads, queries, tokens], causal: those of later tokens are -inf.
    values : [heads, tokens, dim], those of shared ones repeated.
    output : [heads, dim, width], the weights that project each head's output.
    """

    layer: int
    layers: int
    scores: Tensor
    values: Tensor
    output: Tensor

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the scores."""
        return torch.softmax(self.scores, dim=-1)


Method = Callable[[LayerSample], Tensor]
"""Returns the outputs of all heads [heads, queries, dim]; layers come in order, from 0 on."""


def dejavu(share: float) -> Method:
    """Return DejaVu's dropping of heads: for every query the share that adds least to the layer.

    DejaVu predicts these from the layer's input; here they are known, which bounds any predictor.
    """

    def attend(sample: LayerSample) -> Tensor:
        outputs = sample.probabilities @ sample.values
        norms = (outputs @ sample.output).norm(dim=-1)
        return outputs * ~_least(norms, round(share * len(norms)))[..., None]

    return attend


def spatten() -> Method:
    """Return SpAtten's pruning of tokens and heads, which later layers never get back.

    A token's importance is the sum of the probabilities that it was given by all heads of the
    layers before, a head's the sum of its outputs' magnitudes: of queries up to the present one.
    """
    tokens_state: list[Tensor] = []
    heads_state: list[Tensor] = []

    def attend(sample: LayerSample) -> Tensor:
        heads, queries, tokens = sample.scores.shape
        if sample.layer == 0:
            tokens_state[:] = [torch.zeros(queries, tokens)]
            heads_state[:] = [torch.zeros(heads, queries)]
        progress = sample.layer / max(1, sample.layers - 1)
        pruned = _pruned_tokens(tokens_state[0], _PRUNED_TOKENS * progress)
        probabilities = torch.softmax(sample.scores.masked_fill(pruned, -torch.inf), dim=-1)
        dropped = _least(heads_state[0], round(_PRUNED_HEADS * progress * heads))
        outputs = (probabilities @ sample.values) * ~dropped[..., None]
        probabilities = probabilities * ~dropped[..., None]
        tokens_state[0] = tokens_state[0] + probabilities.sum(0).cumsum(0)
        heads_state[0] = heads_state[0] + outputs.abs().sum(-1).cumsum(1)
        return outputs

    return attend


def _pruned_tokens(importance: Tensor, share: float) -> Tensor:
    """Return bool [queries, tokens]: of each query's tokens but its own the least important."""
    queries, tokens = importance.shape
    later = torch.ones(queries, tokens, dtype=torch.bool).triu(0)
    ranks = importance.masked_fill(later, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    counts = (share * torch.arange(queries)).long()
    return ranks < counts[:, None]


def _least(numbers: Tensor, count: int) -> Tensor:
    """Return bool like [heads, queries]: the `count` smallest heads of every query."""
    ranks = numbers.argsort(dim=0, stable=True).argsort(dim=0)
    return ranks < count


def reused_heads(clusters: int) -> Method:
    """Return CHAI-QKV (Table 6.6): a cluster's heads use the representative's values, too."""

    def attend(sample: LayerSample) -> Tensor:
        first = sample.probabilities[:, :FIRST_TOKENS, :FIRST_TOKENS]
        features = np.ascontiguousarray(first.flatten(1)[None].numpy(), np.float32)
        representatives = np.empty((1, len(first)), np.int32)
        _native.attention_clusters(features, clusters, representatives)
        return (sample.probabilities @ sample.values)[torch.from_numpy(representatives[0]).long()]

    return attend


def method_losses(model: Any, method: Method, samples: Tensor) -> list[float]:
    """Return the mean loss of a token, of every sample [samples, tokens], with a method."""
    layers = model.config.num_hidden_layers

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        del mask
        outputs = method(_layer_sample(module, layers, query, key, value, options["scaling"]))
        return outputs.transpose(0, 1)[None].to(query.dtype), None

    losses: list[float] = []
    with collecting(model, attention):
        for sample in samples:
            logits = model(input_ids=sample[None], use_cache=False).logits
            losses.append(float(functional.cross_entropy(logits[0, :-1].float(), sample[1:])))
    return losses


def _layer_sample(
    module: nn.Module, layers: int, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> LayerSample:
    heads, tokens, dim = query.shape[1:]
    group = heads // key.shape[1]
    keys, values = (part[0].repeat_interleave(group, dim=0).float() for part in (key, value))
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    scores = ((query[0].float() @ keys.transpose(1, 2)) * scale).masked_fill(later, -torch.inf)
    projection: Any = module.o_proj
    return LayerSample(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        layers=layers,
        scores=scores,
        values=values,
        output=projection.weight.T.unflatten(0, (heads, dim)).float(),
    )


def stock_cache_losses(model: Any, backend: str, samples: Tensor, *, chunk: int) -> list[float]:
    """Return the losses of Transformers' quantized cache of 8 bits, in calls of some tokens.

    A call's own tokens are read as they are computed, and up to 128 newest ones are not quantized:
    that is how this cache works.
    """
    from transformers import QuantizedCache

    bits = {} if backend == "fp8" else {"nbits": 8}
    losses: list[float] = []
    with torch.no_grad():
        for sample in samples:
            cache = QuantizedCache(backend=backend, config=model.config, **bits)
            logits = [
                model(input_ids=part[None], cache=cache).logits[0].float()
                for part in sample.split(chunk)
            ]
            losses.append(float(functional.cross_entropy(torch.cat(logits)[:-1], sample[1:])))
    return losses
