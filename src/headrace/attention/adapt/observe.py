"""Observation of one request: the output error of a plan, beside a cache that keeps everything.

The output error is what a cache changes of the layers' outputs where all heads have their own keys,
in the model's type (section 6.2.1 has it of pairs of heads).
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.attention.measure.likeness import SampleProgress
from headrace.attention.models import output_layers
from headrace.attention.plan.plan import AttentionPlan, LayerPlan, uncompressed_layer
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.compress import evaluated
from headrace.attention.run.layer import LayerCache
from headrace.forks import ThreadLock

LEAST_TOKENS = 256
"""Tokens after which a request that goes on is looked at: errors of single tokens differ most."""

SampleRequest = Callable[[int], int | None]
"""Place of the request to observe in a batch of so many; None: none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedError:
    """Output errors of one request since it was last looked at.

    Attributes
    ----------
    layers : mean square of the change of each layer's outputs, over that of the outputs; of the
        first ones alone where a call computed no others.
    tokens : that these are of.
    """

    layers: tuple[float, ...]
    tokens: int

    @property
    def mean(self) -> float:
        """Mean over the layers."""
        return fmean(self.layers)


class RequestObservation:
    """Observation of one request of a cache.

    Parameters
    ----------
    level : of the plan, see `SeenRequest.level`.
    """

    def __init__(self, cache: CompressedCache, sample: SampleRequest, level: int) -> None:
        self.level = level
        self._sample = sample
        self._cache = weakref.ref(cache)
        self._request: int | None = None
        self._sampled = self._left = False
        self._errors: list[Tensor | None] = [None] * len(cache.plan.layers)
        self._calls = [0] * len(cache.plan.layers)
        self._tokens = 0
        self._lock = ThreadLock()

    @property
    def ended(self) -> bool:
        """True if the cache is gone, or the request is gone from it."""
        return self._left or self._cache() is None

    def end(self) -> None:
        """Observe no more: the cache was reset, or goes on without the request."""
        self._left = True

    def request(self, batch: int) -> int | None:
        """Return the place of the observed request; the first layer that asks decides."""
        if not self._sampled:
            self._request, self._sampled = self._sample(batch), True
        return self._request

    def add(self, layer: int, changes: Tensor, outputs: Tensor) -> None:
        """Add the changes of outputs, and the outputs: [tokens, width] of one layer."""
        sums = torch.stack([changes.float().square().sum(), outputs.float().square().sum()])
        with self._lock:
            if layer == 0:
                self._tokens += len(changes)
            self._calls[layer] += 1
            total = self._errors[layer]
            self._errors[layer] = sums if total is None else total + sums

    def take(self) -> ObservedError | None:
        """Return the errors since the last call; None while there are too few tokens.

        None, too, while another thread computes some of the layers: the others have no errors yet.
        """
        with self._lock:
            computing = min(self._calls) != max(self._calls)
            if not self.ended and (computing or self._tokens < LEAST_TOKENS):
                return None
            return self._taken() if self._tokens else None

    def _taken(self) -> ObservedError:
        ratios: list[float] = []
        for sums in self._errors:
            if sums is not None:  # the layers that an early exit leaves out have none
                change, output = sums.tolist()
                ratios.append(change / output if output else 0.0)
        seen = ObservedError(layers=tuple(ratios), tokens=self._tokens)
        self._errors = [None] * len(self._errors)
        self._tokens = 0
        return seen


class _RequestObserver:
    """Observer of one layer: computes the observed request's attention with all keys, too."""

    def __init__(
        self,
        plan: LayerPlan,
        index: int,
        *,
        first_tokens: int,
        projection: Any,
        observation: RequestObservation,
    ) -> None:
        self._index, self._projection, self._observation = index, projection, observation
        chooses = plan.clustered and plan.representatives is None
        self._unshared = first_tokens if chooses else 0
        self._full = LayerCache(uncompressed_layer(plan.heads), first_tokens=first_tokens)
        self._request: int | None = None
        self._begun = False
        self._real: Tensor | None = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the request's keys and values."""
        return self._full.allocated_bytes

    def attended(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        output: Tensor,
        *,
        scale: float,
        allowed: Tensor | None,
    ) -> bool:
        """Add the next tokens of the observed request; False without one."""
        if not self._begun:
            self._request, self._begun = self._observation.request(len(query)), True
        if self._request is None:
            return False
        if self._request >= len(query):  # a cache without tokens goes on with fewer requests
            self.reset()
            return False
        part = slice(self._request, self._request + 1)
        visible = None if allowed is None else allowed[part]
        full = self._full.attend(
            query[part], keys[part], values[part], scale=scale, allowed=visible
        )
        counted = self._counted(full, visible)
        outputs = full[0, counted].flatten(1)
        changes = output[self._request, counted].flatten(1) - outputs
        self._observation.add(self._index, self._projected(changes), self._projected(outputs))
        return True

    def _counted(self, full: Tensor, visible: Tensor | None) -> Tensor:
        """Return the places of new tokens that are no padding, and that heads are shared for."""
        tokens = full.shape[1]
        if visible is None:
            real = torch.ones(tokens, dtype=torch.bool, device=full.device)
        else:
            real = visible[0, -1, -tokens:]
        before = real[:0] if self._real is None else self._real
        self._real = torch.cat([before, real])
        place = before.sum() + real.cumsum(0) - 1
        return torch.nonzero(real & (place >= self._unshared)).squeeze(1)

    def _projected(self, outputs: Tensor) -> Tensor:
        layer = self._projection
        if layer is None:
            return outputs
        outputs = outputs.to(layer.weight.dtype)  # another one where the cache began in autocast
        if isinstance(layer, nn.Linear):
            return functional.linear(outputs, layer.weight)
        return outputs @ layer.weight

    def crop(self, tokens: int) -> None:
        """Forget the newest tokens."""
        self._full.crop(tokens)
        if self._real is not None:
            self._real = self._real[: len(self._real) - tokens]

    def select(self, requests: Tensor) -> None:
        """Follow the request to its first new place; without one its observation ends."""
        if self._request is not None:
            places = torch.nonzero(requests == self._request).flatten()
            if len(places):
                self._request = int(places[0])
            else:
                self.reset()

    def reset(self) -> None:
        """End the observation."""
        self._request, self._begun = None, True
        self._full.reset()
        self._observation.end()


def observe(
    model: nn.Module, cache: CompressedCache, sample: SampleRequest, *, level: int = 0
) -> RequestObservation:
    """Observe one request of an empty cache from its first token on."""
    observation = RequestObservation(cache, sample, level)
    projections = output_layers(model)
    layers: list[Any] = cache.layers
    for index, layer in enumerate(layers):
        layer.layer.observer = _RequestObserver(
            cache.plan.layers[index],
            index,
            first_tokens=cache.plan.first_tokens,
            projection=projections[index],
            observation=observation,
        )
    return observation


def measured_output_error(
    model: nn.Module, plan: AttentionPlan, samples: Tensor, progress: SampleProgress
) -> float | None:
    """Return the output error of a plan on samples [samples, tokens] of text.

    Every query reads keys and values as the cache stores them, as in decoding. None where samples
    are too short to cluster heads.
    """
    device = next(model.parameters()).device
    errors: list[float] = []
    with evaluated(model, plan):
        for index, sample in enumerate(samples):
            progress(f"sample {index + 1} of {len(samples)}", index / len(samples))
            cache = CompressedCache(plan, through_store=True)
            observation = observe(model, cache, lambda _batch: 0)
            model(input_ids=sample[None].to(device), cache=cache)
            del cache
            seen = observation.take()
            if seen is not None:
                errors.append(seen.mean)
    return fmean(errors) if errors else None
