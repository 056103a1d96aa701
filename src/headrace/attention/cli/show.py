"""Profiles and plans of attention as tables."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from rich.console import RenderableType

from headrace.artifact import Artifact
from headrace.attention.cli.serving import serving_bound, serving_tables
from headrace.attention.plan.clusters import clustering_errors, elbow
from headrace.attention.plan.formats import StorageFormat
from headrace.attention.plan.plan import AttentionPlan, LayerPlan
from headrace.attention.profile import AttentionProfile, LayerProfile
from headrace.cli.tables import facts, rows
from headrace.errors import VerificationError


def likeness_tables(profile: AttentionProfile, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a profile: its text, and the likeness of every layer's heads."""
    yield facts(
        "attention profile",
        {
            "text": f"{profile.samples} samples of {profile.tokens} tokens",
            "model's digest": profile.model[:12],
        },
        everything=everything,
    )
    columns = ("correlation", "beyond the first token", "elbow", "uniform heads")
    yield from _layers(columns, profile.layers, _likeness_cells, everything)


_Layer = TypeVar("_Layer", LayerProfile, LayerPlan)


def _layers(
    columns: tuple[str, ...],
    layers: Sequence[_Layer],
    cells: Callable[[_Layer], tuple[str, ...]],
    everything: bool,
) -> Iterator[RenderableType]:
    """Return the table of layers: number, heads, and other columns."""
    numbered = [(str(index), _heads(layer), *cells(layer)) for index, layer in enumerate(layers)]
    return iter(rows("layers", ("layer", "heads", *columns), numbered, everything=everything))


def _heads(layer: LayerProfile | LayerPlan) -> str:
    return heads_text(layer.heads.query_heads, layer.heads.key_value_heads)


def _likeness_cells(layer: LayerProfile) -> tuple[str, ...]:
    return (
        f"{pair_mean(layer.correlation):.2f}",
        f"{pair_mean(layer.correlation_beyond_first):.2f}",
        str(elbow(clustering_errors(layer.distance))),
        str(int((layer.uniformity > UNIFORM).sum())),
    )


UNIFORM = 0.95
"""Entropy over its largest value above which a head is said to look at all tokens alike."""


def pair_mean(matrix: np.ndarray) -> float:
    """Return the mean over pairs of different heads; 1 of a single head."""
    count = len(matrix)
    if count == 1:
        return 1.0
    return float((matrix.sum() - np.trace(matrix)) / (count * (count - 1)))


def heads_text(heads: int, key_value_heads: int) -> str:
    """Return numbers of heads: "9 on 3" where heads share keys and values."""
    return str(heads) if heads == key_value_heads else f"{heads} on {key_value_heads}"


def cache_tables(plan: AttentionPlan, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan: the frontier, what fits, and the layers."""
    yield facts(
        "attention plan",
        {
            "chosen": plan.chosen or "by hand",
            "bytes": f"{plan.share:z.0%} of the model's own cache",
            "attention": f"faster by at most {1 / plan.share:.2f}x, as bytes bound it",
            "model's digest": plan.model[:12] or "any model of these heads",
            "text's digest": plan.text[:12] or "none",
            "output error": error_text(plan.output_error),
        },
        everything=everything,
    )
    if plan.frontier:
        yield from rows(
            "bytes against loss: nothing measured has less of both (loss and standard error)",
            ("cache", "bytes", "added loss", "standard error"),
            [
                (
                    choice.name,
                    f"{choice.share:z.0%}",
                    f"{choice.added_loss:+z.2%}",
                    f"{choice.standard_error:z.2%}",
                )
                for choice in plan.frontier
            ],
            everything=everything,
        )
    if plan.alternatives:
        yield from rows(
            "alternatives with more clusters",
            ("clusters", "bytes"),
            [
                (alternative.chosen or str(alternative.clusters), f"{alternative.share:z.0%}")
                for alternative in plan.alternatives
            ],
            everything=everything,
        )
    yield from serving_tables(serving_bound(plan), everything=everything)
    columns = ("represent", "heads of keys", "keys", "values")
    yield from _layers(columns, plan.layers, _plan_cells, everything)


def error_text(output_error: float | None) -> str:
    """Return a plan's output error as words."""
    return "not measured" if output_error is None else f"{output_error:.2g}"


def _plan_cells(layer: LayerPlan) -> tuple[str, ...]:
    named = {
        StorageFormat.MODEL: "model's",
        StorageFormat.INT8: "8 bits",
        StorageFormat.INT4: "4 bits",
    }
    return (
        str(layer.clusters),
        str(layer.key_heads),
        named[layer.keys],
        named[layer.values],
    )


def verify_cache_plan(artifact: Artifact, source: str) -> Iterator[str]:
    """Check a plan: its fields agree, and its bytes are those of the choice that it names."""
    plan = AttentionPlan.from_artifact(artifact, source)
    for point in plan.frontier:
        if point.name == plan.chosen and not math.isclose(point.share, plan.share):
            raise VerificationError(
                f"{source}: the layers take {plan.share:z.1%} of the bytes, the point that was "
                f"chosen, {point.name}, {point.share:z.1%}"
            )
    yield f"ok {plan.digest[:12]} {plan.description}"
