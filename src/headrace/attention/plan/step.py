"""Roofline of a step of decoding: its bytes and operations by a plan, and the gain that they allow.

A step computes one token of every request. It reads the weights once, and every request's keys and
values. Both are read from memory and used for few operations, so that bytes bound its time.
"""

from dataclasses import dataclass

from headrace.attention.errors import AttentionError
from headrace.attention.plan.plan import AttentionPlan, LayerPlan
from headrace.roofline import Roofline


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingStep:
    """Bytes that a step of decoding reads, and operations that it computes.

    Attributes
    ----------
    weight_bytes : of weights, but for rows of projections that a plan leaves out.
    cache_bytes : of keys and values.
    operations : floating-point additions and multiplications.
    """

    weight_bytes: float
    cache_bytes: float
    operations: float

    @property
    def read_bytes(self) -> float:
        """Bytes of weights, keys and values."""
        return self.weight_bytes + self.cache_bytes

    def seconds(self, device: Roofline) -> float:
        """Return the least seconds on a device: those of the bytes, or of the operations."""
        return max(self.read_bytes / device.bytes_per_s, self.operations / device.flops_per_s)


def decoding_step(plan: AttentionPlan, *, batch: int, tokens: int) -> DecodingStep:
    """Return a step of so many requests, each with so many tokens in its cache.

    Rows of projections of heads that are not scored are left out where no request of the batch
    needs them: with fixed membership, and for a single request.

    Raises
    ------
    AttentionError : the plan says nothing about the model's weights.
    """
    weights = plan.weights
    if weights is None:
        raise AttentionError(
            "the plan has no weights: make it by headrace attention plan, or replace its weights "
            "by headrace.attention.model_weights(model)"
        )
    unused_rows = sum(_unused_rows(layer, batch) for layer in plan.layers)
    # Layers that share their weights have more rows than these.
    numbers = max(0, weights.read_numbers - weights.hidden_size * unused_rows)
    products = sum(
        (layer.clusters + layer.heads.query_heads) * layer.heads.dim for layer in plan.layers
    )
    return DecodingStep(
        weight_bytes=weights.read_bytes * numbers / weights.read_numbers,
        cache_bytes=batch * tokens * plan.token_bytes,
        operations=2 * batch * (numbers + tokens * products),
    )


def _unused_rows(layer: LayerPlan, batch: int) -> int:
    """Return the rows of a layer's projections of queries and keys that a step does not need."""
    if batch > 1 and layer.representatives is None:
        return 0
    heads = layer.heads
    unused = heads.query_heads - layer.clusters + heads.key_value_heads - layer.key_heads
    return unused * heads.dim


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """A step of decoding by the model's own cache, and by a plan's."""

    own: DecodingStep
    planned: DecodingStep

    def bound(self, device: Roofline | None) -> float:
        """Return the largest gain; see `step_bound`."""
        if device is None:
            return self.own.read_bytes / self.planned.read_bytes
        return self.own.seconds(device) / self.planned.seconds(device)


def compare_steps(plan: AttentionPlan, *, batch: int, tokens: int) -> StepComparison:
    """Return a step by the model's own cache and by a plan's.

    Raises
    ------
    AttentionError : see `decoding_step`.
    """
    return StepComparison(
        own=decoding_step(plan.uncompressed(), batch=batch, tokens=tokens),
        planned=decoding_step(plan, batch=batch, tokens=tokens),
    )


def step_bound(
    plan: AttentionPlan, *, batch: int, tokens: int, device: Roofline | None = None
) -> float:
    """Return the largest gain of a step over the model's own cache: of time, as bytes bound it.

    Attention alone gains at most ``1 / plan.share``: 2H / (H + k) where k of H heads represent.

    Parameters
    ----------
    device : compares times of both on it, which operations may bound; None: bytes alone.

    Raises
    ------
    AttentionError : see `decoding_step`.
    """
    return compare_steps(plan, batch=batch, tokens=tokens).bound(device)


def fitting_requests(plan: AttentionPlan, *, tokens: int, memory_bytes: int) -> int:
    """Return how many requests' caches of so many tokens fit into memory for caches alone."""
    return memory_bytes // plan.cache_bytes(1, tokens)
