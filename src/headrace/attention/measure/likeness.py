"""Measures how alike a model's heads are: probabilities and outputs, sample after sample.

Sums of products of heads alone are kept: a sample's probabilities are gone before the next one.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace import _native
from headrace.attention.errors import AttentionError
from headrace.attention.models import (
    collecting,
    layer_heads,
    model_digest,
    output_layer,
    plain_numbers,
)
from headrace.attention.plan.clusters import clustering_errors, elbow
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.profile import AttentionProfile, LayerProfile

_ERROR_QUERIES = 32
"""Queries of a sample, evenly spaced, by which output errors are measured: of all of 256 they take
eight times as long."""
_CHANGE_SAMPLES = 16
_CHANGE_TOKENS = 16
"""Samples, and first tokens of each, by which the memberships' changes are measured."""
_CHANGE_BYTES = 24 << 20
"""Of these probabilities of all layers, kept to the end: fewer samples of large models."""
_BLOCK_BYTES = 2 << 20
"""Of the probabilities of some queries, in float32, that are computed at a time. With what is
computed from them a sample takes some ten times as much beside the model's own pass."""

SampleProgress = Callable[[str, float], None]


def measure_likeness(
    model: nn.Module,
    samples: Tensor,
    *,
    text: str,
    progress: SampleProgress,
    stopped: Callable[[], bool] = lambda: False,
) -> AttentionProfile:
    """Return the profile of a model on samples [samples, tokens] of a text of this digest.

    Parameters
    ----------
    stopped : asked after every sample; where it says so, the profile is of those until then.

    Raises
    ------
    AttentionError : see `headrace.attention.models.layer_heads`; probabilities are not numbers.
    """
    heads = layer_heads(model)
    row_bytes = sum(layer.query_heads for layer in heads) * _CHANGE_TOKENS**2 * 4
    sums = [
        _LayerSums(layer, max(1, min(_CHANGE_SAMPLES, _CHANGE_BYTES // row_bytes)))
        for layer in heads
    ]

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        del mask, options
        return sums[module.layer_idx].add(module, query, key, value, scaling), None

    # logits would take more memory than all else
    decoder: Any = getattr(model, "base_model", model)
    read = 0
    with collecting(model, attention):
        device = next(model.parameters()).device
        for sample in samples:
            progress(f"sample {read + 1} of {len(samples)}", read / len(samples))
            decoder(input_ids=sample[None].to(device), use_cache=False)
            read += 1
            if stopped():
                break
    return AttentionProfile(
        layers=tuple(layer.profile() for layer in sums),
        model=model_digest(model),
        text=text,
        samples=read,
        tokens=samples.shape[1],
    )


class _Moments:
    """Sums of products of heads' numbers, of which a sample has some blocks.

    Parameters
    ----------
    count : of heads.
    """

    def __init__(self, count: int) -> None:
        self.products = np.zeros((count, count))
        self._sums = np.zeros(count)

    def add(self, numbers: Tensor) -> None:
        """Add some numbers of every head: [heads, ..]."""
        rows = numbers.flatten(1).double()
        self.products += (rows @ rows.T).cpu().numpy()
        self._sums += rows.sum(1).cpu().numpy()

    def correlation(self, count: int) -> NDArray[np.float64]:
        """Return the correlation of heads over so many numbers; those not added are 0."""
        covariance = self.products - np.outer(self._sums, self._sums) / count
        deviation = np.sqrt(np.clip(np.diag(covariance), 0, None))
        scale = np.outer(deviation, deviation)
        result = np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)
        return np.clip(result, -1, 1)


class _LayerSums:
    """Sums over the samples of one layer."""

    def __init__(self, heads: LayerHeads, change_samples: int) -> None:
        count = heads.query_heads
        self._heads = heads
        self._samples = 0
        self._correlation = np.zeros((count, count))
        self._beyond_first = np.zeros((count, count))
        self._one_sample = np.zeros((count, count))
        self._one_sample_beyond = np.zeros((count, count))
        self._distance = np.zeros((count, count))
        self._error = np.zeros((count, count))
        self._output = np.zeros(count)
        self._uniformity = np.zeros(count)
        self._first_rows: list[NDArray[np.float32]] = []
        self._change_samples = change_samples

    def add(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        """Add a sample; return its attention [1, tokens, heads, dim]."""
        heads = self._heads
        keys, values = key[0].float(), value[0].float()
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        tokens = query.shape[2]
        weight = _output_weight(module, heads)
        out = query.new_empty(1, tokens, heads.query_heads, heads.dim)
        everything, beyond = _Moments(heads.query_heads), _Moments(heads.query_heads)
        size = max(1, _BLOCK_BYTES // (4 * heads.query_heads * tokens))
        for first in range(0, tokens, size):
            last = min(first + size, tokens)
            rows = _probabilities(query[0, :, first:last].float() * scale, keys, first)
            everything.add(rows)
            beyond.add(_beyond_first(rows[:, first == 0 :]))
            self._add_uniformity(rows, first, tokens)
            self._add_errors(rows, first, tokens, values, weight)
            shared = rows.unflatten(0, (len(values), -1)).flatten(1, 2)
            outputs = (shared @ values[:, :last]).unflatten(1, (-1, last - first))
            out[0, first:last] = outputs.flatten(0, 1).transpose(0, 1).to(out.dtype)
            if first == 0 and len(self._first_rows) < self._change_samples:
                self._first_rows.append(_first_rows(query, keys, scale))
        if not np.isfinite(everything.products).all():
            raise AttentionError(
                f"layer {module.layer_idx} has probabilities that are not numbers: the model's "
                "weights are damaged, or too large for their type"
            )
        self._add_moments(everything, beyond, tokens)
        return out

    def _add_moments(self, everything: _Moments, beyond: _Moments, tokens: int) -> None:
        correlation = everything.correlation(tokens**2)
        correlation_beyond = beyond.correlation((tokens - 1) ** 2)
        self._correlation += correlation
        self._beyond_first += correlation_beyond
        if self._samples == 0:
            self._one_sample += correlation
            self._one_sample_beyond += correlation_beyond
        products = everything.products / tokens
        squares = np.diag(products)
        self._distance += np.clip(squares[:, None] + squares[None] - 2 * products, 0, None)
        self._samples += 1

    def _add_uniformity(self, rows: Tensor, first: int, tokens: int) -> None:
        """Add the entropies of some queries, those of the first token aside."""
        last = first + rows.shape[1]
        visible = torch.arange(first + 1, last + 1, device=rows.device)
        entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1)
        uniformity = (entropy / visible.log())[:, first == 0 :]
        self._uniformity += uniformity.double().sum(-1).cpu().numpy() / (tokens - 1)

    def _add_errors(
        self, rows: Tensor, first: int, tokens: int, values: Tensor, weight: Tensor | None
    ) -> None:
        """Add the changes of outputs of some of the queries."""
        step = max(1, tokens // _ERROR_QUERIES)
        places = [place - first for place in range(step - 1, tokens, step)]
        queries = [place for place in places if 0 <= place < rows.shape[1]]
        if not queries:
            return
        weights = rows[:, queries]
        group = self._heads.query_heads // self._heads.key_value_heads
        for head in range(self._heads.query_heads):
            outputs = weights @ values[head // group, : rows.shape[2]]
            if weight is not None:
                outputs = outputs @ weight[head].float()
            own = float(outputs[head].square().mean(-1).sum())
            outputs -= outputs[head].clone()
            errors = outputs.square_().mean(-1).sum(-1)
            self._error[:, head] += errors.double().cpu().numpy() / len(places)
            self._output[head] += own / len(places)

    def profile(self) -> LayerProfile:
        """Return the means."""
        distance = self._distance / self._samples
        clusters = elbow(clustering_errors(distance))
        return LayerProfile(
            heads=self._heads,
            correlation=self._correlation / self._samples,
            correlation_beyond_first=self._beyond_first / self._samples,
            sample_correlation=self._one_sample,
            sample_correlation_beyond_first=self._one_sample_beyond,
            distance=distance,
            output_error=self._error / max(1e-30, float(self._output.mean())),
            uniformity=self._uniformity / self._samples,
            changes=self._changes(clusters),
        )

    def _changes(self, clusters: int) -> NDArray[np.float64]:
        rows = np.stack(self._first_rows)
        count = self._heads.query_heads
        together: list[NDArray[np.bool_]] = []
        for tokens in range(2, rows.shape[2] + 1):
            features = np.ascontiguousarray(rows[:, :, :tokens, :tokens]).reshape(
                len(rows), count, -1
            )
            representatives = np.empty((len(rows), count), np.int32)
            _native.attention_clusters(features, min(clusters, count), representatives)
            together.append(representatives[:, :, None] == representatives[:, None])
        pairs = max(1, count * (count - 1))
        changed = [(a != b).sum((1, 2)).mean() / pairs for a, b in pairwise(together)]
        return np.array(changed)


def _probabilities(query: Tensor, keys: Tensor, first: int) -> Tensor:
    """Return the probabilities of some queries [heads, queries, dim] from a token on.

    Parameters
    ----------
    keys : [heads of keys, tokens, dim].

    Returns
    -------
    Tensor : [heads, queries, tokens up to the newest of them].
    """
    queries = query.shape[1]
    last = first + queries
    grouped = query.unflatten(0, (len(keys), -1)).flatten(1, 2)
    scores = (grouped @ keys[:, :last].transpose(1, 2)).unflatten(1, (-1, queries)).flatten(0, 1)
    later = torch.ones(queries, last, dtype=torch.bool, device=query.device).triu(first + 1)
    return scores.masked_fill_(later, -torch.inf).softmax(-1)


def _beyond_first(rows: Tensor) -> Tensor:
    """Return probabilities of queries without the first token, divided by their sum."""
    others = rows[:, :, 1:]
    return others / others.sum(-1, keepdim=True).clamp_min(1e-9)


def _first_rows(query: Tensor, keys: Tensor, scale: float) -> NDArray[np.float32]:
    first = _probabilities(query[0, :, :_CHANGE_TOKENS].float() * scale, keys, 0)
    return np.ascontiguousarray(first.cpu().numpy(), np.float32)


def _output_weight(module: nn.Module, heads: LayerHeads) -> Tensor | None:
    """Return the projection of heads' outputs, [heads, dim, width], where a module has one."""
    layer = output_layer(module, heads)
    if layer is None:
        return None
    weight = plain_numbers(layer.weight)
    weight = weight.T if isinstance(layer, nn.Linear) else weight
    return weight.detach().unflatten(0, (heads.query_heads, heads.dim))
