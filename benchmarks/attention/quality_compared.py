"""Losses of the product's plans beside those of CHAI and of other methods, on unseen text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.attention.quality_losses import CHUNK, Losses, Subject
from benchmarks.attention.quality_rivals import (
    dejavu,
    reused_heads,
    spatten,
    stock_cache_losses,
)
from benchmarks.attention.quality_saved import ELEMENT_BYTES
from benchmarks.output import Output
from headrace.attention.plan.choose import added_loss
from headrace.attention.plan.clusters import (
    clustered_by_distance,
    representatives_by_error,
    with_representatives,
)
from headrace.attention.plan.formats import LayerHeads, StorageFormat
from headrace.attention.plan.plan import AttentionPlan, uncompressed_layer
from headrace.attention.profile import AttentionProfile, LayerProfile

_STOCK_CHUNK = 64
_RANDOM_SEEDS = 3


def compared_methods(
    output: Output, subject: Subject, losses: Losses, profile: AttentionProfile, quick: bool
) -> Iterator[tuple[str, float]]:
    """Print losses of all methods on unseen text; yield ours over CHAI's at equal clusters."""
    samples = subject.samples.unseen[:CHUNK]
    own = losses.of_plan("own", None, samples)

    def row(method: str, added: Sequence[float]) -> tuple[float, float]:
        loss, error = added_loss(added, own)
        output.row(
            "losses of methods, on unseen text",
            **subject.row,
            method=method,
            added_loss=loss,
            standard_error=error,
        )
        return loss, error

    full = full_plan(profile)
    heads = profile.layers[0].heads.query_heads
    for clusters in subject.clusters:
        size = f"{clusters} of {heads} heads"
        chai = own_membership(full, clusters)
        theirs, error = row(f"CHAI, {size}", losses.of_plan("CHAI", chai, samples))
        plan = chosen_clusters(losses, profile, clusters, subject.samples.plan)
        ours, _ = row(f"headrace, {size}", losses.of_plan("headrace", plan, samples))
        if theirs <= 2 * error:
            output.note(f"{subject.name}: CHAI's loss at {size} is within two standard errors of 0")
        elif clusters in subject.barred:
            yield f"clusters-over-chai-{subject.name}", ours / theirs
        if not (quick and subject.name == "smollm2"):
            for name, plan in _other_clusters(profile, clusters, 1 if quick else _RANDOM_SEEDS):
                row(f"{name}, {size}", losses.of_plan(name, plan, samples))
            reused = reused_heads(clusters)
            row(f"CHAI-QKV, {size}", losses.of_method(f"QKV {clusters}", reused, samples))
    if quick and subject.name == "smollm2":
        return
    for name, plan in bit_plans(full):
        row(name, losses.of_plan(name, plan, samples))
    for name, method in (
        *((f"DejaVu's dropping of {share:.0%}", dejavu(share)) for share in (0.1, 0.3, 0.5)),
        ("SpAtten's pruning", spatten()),
    ):
        row(name, losses.of_method(name, method, samples))
    for backend in ("fp8", "hqq"):
        _stock_cache(output, subject, losses, backend, row)


def _stock_cache(
    output: Output,
    subject: Subject,
    losses: Losses,
    backend: str,
    row: Callable[[str, Sequence[float]], object],
) -> None:
    """Measure Transformers' cache of 8 bits with a backend, or note why it cannot be."""
    samples = subject.samples.unseen[:CHUNK]
    name = f"Transformers' cache in 8 bits, {backend}"
    try:
        row(
            name,
            losses.measured(
                name,
                samples,
                lambda part: stock_cache_losses(subject.model, backend, part, chunk=_STOCK_CHUNK),
            ),
        )
    except (ImportError, ValueError) as error:
        output.note(f"{name}: not measured: {' '.join(str(error).split())}")


def full_plan(profile: AttentionProfile) -> AttentionPlan:
    """Return the plan that compresses nothing."""
    return AttentionPlan(
        layers=tuple(uncompressed_layer(layer.heads) for layer in profile.layers),
        model=profile.model,
        element_bytes=ELEMENT_BYTES,
    )


def bit_plans(full: AttentionPlan) -> Iterator[tuple[str, AttentionPlan]]:
    """Yield the plans of fewer bits, with names."""
    int8, int4 = StorageFormat.INT8, StorageFormat.INT4
    for name, keys, values in (
        ("8 bits", int8, int8),
        ("keys of 4 bits, values of 8", int4, int8),
        ("4 bits", int4, int4),
    ):
        layers = tuple(replace(layer, keys=keys, values=values) for layer in full.layers)
        yield f"headrace, {name}", replace(full, layers=layers)


def own_membership(full: AttentionPlan, clusters: int, **settings: Any) -> AttentionPlan:
    """Return a plan that clusters each request's heads by its first tokens."""
    layers = tuple(
        replace(layer, clusters=clusters, key_heads=min(clusters, layer.heads.key_value_heads))
        for layer in full.layers
    )
    return replace(full, layers=layers, **settings)


def _fixed(
    profile: AttentionProfile, representatives_of: Callable[[LayerProfile], NDArray[np.int32]]
) -> AttentionPlan:
    """Return a plan of fixed representatives."""
    return replace(
        full_plan(profile),
        layers=tuple(
            with_representatives(uncompressed_layer(layer.heads), representatives_of(layer))
            for layer in profile.layers
        ),
    )


def _by_output_error(layer: LayerProfile, clusters: int) -> NDArray[np.int32]:
    """Return representatives among single heads, whose keys need not go in groups."""
    count = layer.heads.query_heads
    heads = LayerHeads(query_heads=count, key_value_heads=count, dim=layer.heads.dim)
    return representatives_by_error(layer.output_error, heads, clusters)[0]


def chosen_clusters(
    losses: Losses, profile: AttentionProfile, clusters: int, samples: Tensor
) -> AttentionPlan:
    """Return what the product chooses among: fixed clusters, or each request's by 64 tokens."""
    plans = {
        "fixed": _fixed(profile, lambda layer: _by_output_error(layer, clusters)),
        "by 64 tokens": own_membership(full_plan(profile), clusters, first_tokens=64),
    }
    return min(plans.items(), key=lambda item: float(np.mean(losses.of_plan(*item, samples))))[1]


def _other_clusters(
    profile: AttentionProfile, clusters: int, seeds: int
) -> Iterator[tuple[str, AttentionPlan]]:
    """Yield the plans of clusters by distance for all requests, and of random ones."""
    static = _fixed(profile, lambda layer: clustered_by_distance(layer.distance, clusters))
    yield "CHAI-static", static
    for seed in range(seeds):
        generator = np.random.default_rng(seed)

        def drawn(
            layer: LayerProfile, generator: np.random.Generator = generator
        ) -> NDArray[np.int32]:
            count = layer.heads.query_heads
            members = generator.choice(count, clusters, replace=False)
            representatives = generator.choice(members, count)
            representatives[members] = members
            return representatives.astype(np.int32)

        yield f"random clusters {seed}", _fixed(profile, drawn)
