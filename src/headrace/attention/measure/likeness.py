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

SampleProgress = Callable[[str, float], None]


def measure_likeness(
    model: nn.Module, samples: Tensor, *, text: str, progress: SampleProgress
) -> AttentionProfile:
    """Return the profile of a model on samples [samples, tokens] of a text of this digest."""
    heads = layer_heads(model)
    sums = [_LayerSums(layer) for layer in heads]

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

    with collecting(model, attention):
        device = next(model.parameters()).device
        for index, sample in enumerate(samples):
            progress(f"sample {index + 1} of {len(samples)}", index / len(samples))
            model(input_ids=sample[None].to(device), use_cache=False)
    return AttentionProfile(
        layers=tuple(layer.profile() for layer in sums),
        model=model_digest(model),
        text=text,
        samples=samples.shape[0],
        tokens=samples.shape[1],
    )


class _LayerSums:
    """Sums over the samples of one layer."""

    def __init__(self, heads: LayerHeads) -> None:
        count = heads.query_heads
        self._heads = heads
        self._samples = 0
        self._correlation = np.zeros((count, count))
        self._beyond_first = np.zeros((count, count))
        self._one_sample = np.zeros((count, count))
        self._distance = np.zeros((count, count))
        self._error = np.zeros((count, count))
        self._output = np.zeros(count)
        self._uniformity = np.zeros(count)
        self._first_rows: list[NDArray[np.float32]] = []

    def add(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        """Add a sample; return its attention [1, tokens, heads, dim]."""
        group = self._heads.query_heads // self._heads.key_value_heads
        keys, values = (part.repeat_interleave(group, dim=1)[0].float() for part in (key, value))
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        tokens = query.shape[2]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
        scores = (query[0].float() @ keys.transpose(1, 2)) * scale
        probabilities = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
        self._add_likeness(probabilities)
        self._add_errors(probabilities, values, _output_weight(module, self._heads))
        if len(self._first_rows) < _CHANGE_SAMPLES:
            rows = probabilities[:, :_CHANGE_TOKENS, :_CHANGE_TOKENS]
            self._first_rows.append(np.ascontiguousarray(rows.cpu().numpy(), np.float32))
        self._samples += 1
        return (probabilities @ values).to(value.dtype).transpose(0, 1)[None]

    def _add_likeness(self, probabilities: Tensor) -> None:
        rows = probabilities.flatten(1).double()
        correlation = torch.corrcoef(rows).nan_to_num(0).cpu().numpy()
        self._correlation += correlation
        if self._samples == 0:
            self._one_sample += correlation
        beyond = probabilities[:, 1:, 1:]
        beyond = (beyond / beyond.sum(-1, keepdim=True).clamp_min(1e-9)).flatten(1).double()
        self._beyond_first += torch.corrcoef(beyond).nan_to_num(0).cpu().numpy()
        products = (rows @ rows.T).cpu().numpy() / probabilities.shape[1]
        squares = np.diag(products)
        self._distance += np.clip(squares[:, None] + squares[None] - 2 * products, 0, None)
        visible = torch.arange(1, probabilities.shape[1] + 1, device=probabilities.device)
        entropy = -(probabilities * probabilities.clamp_min(1e-30).log()).sum(-1)
        uniformity = entropy[:, 1:] / visible[1:].log()
        self._uniformity += uniformity.mean(-1).double().cpu().numpy()

    def _add_errors(self, probabilities: Tensor, values: Tensor, weight: Tensor | None) -> None:
        step = max(1, probabilities.shape[1] // _ERROR_QUERIES)
        rows = probabilities[:, step - 1 :: step]
        for head in range(self._heads.query_heads):
            outputs = rows @ values[head]
            if weight is not None:
                outputs = outputs @ weight[head]
            errors = (outputs - outputs[head]).square().mean((1, 2))
            self._error[:, head] += errors.double().cpu().numpy()
            self._output[head] += float(outputs[head].square().mean())

    def profile(self) -> LayerProfile:
        """Return the means."""
        distance = self._distance / self._samples
        clusters = elbow(clustering_errors(distance))
        return LayerProfile(
            heads=self._heads,
            correlation=self._correlation / self._samples,
            correlation_beyond_first=self._beyond_first / self._samples,
            sample_correlation=self._one_sample,
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


def _output_weight(module: nn.Module, heads: LayerHeads) -> Tensor | None:
    """Return the projection of heads' outputs, [heads, dim, width], where a module has one."""
    layer = output_layer(module, heads)
    if layer is None:
        return None
    weight = plain_numbers(layer.weight)
    weight = weight.T if isinstance(layer, nn.Linear) else weight
    return weight.detach().float().unflatten(0, (heads.query_heads, heads.dim))
