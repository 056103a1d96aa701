"""SmolLM2 with weights of 4 bits, with and without clusters (Table 6.4)."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks.attention.quality_compared import (
    bit_plans,
    chosen_clusters,
    full_plan,
    own_membership,
)
from benchmarks.attention.quality_losses import CHUNK, Losses, Subject
from benchmarks.attention.quality_models import smollm2_missing
from benchmarks.attention.quality_subjects import model_states, profile_of, smollm2_subject
from benchmarks.harness import Report
from benchmarks.kept import KeptRows
from headrace.attention.plan.choose import added_loss
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.profile import AttentionProfile

FULL_ONLY = True
_GROUP = 32
"""Weights of an output that have a unit in common."""
_CLUSTERS = 8
"""Of SmolLM2's 9 heads."""


def bars() -> dict[str, str]:
    """Return no bars: the section `quality` has them, of weights in bfloat16."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Measure losses with both weights, by every cache; a run can be interrupted."""
    if missing := _missing():
        report.note(f"weights: {missing}")
        return
    rows = KeptRows(
        "attention", "weights", quick=quick, folder=report.state_folder, quiet=("losses",)
    )
    subject = smollm2_subject(quick)
    unseen = subject.samples.unseen[:CHUNK]
    own = Losses(rows, subject).of_plan("own", None, unseen)
    for name, of_weights in (("bfloat16", subject), ("4 bits", _with_few_bits(subject))):
        losses = Losses(rows, of_weights)
        profile = profile_of(of_weights, model_states(report))
        same_weights = losses.of_plan("own", None, unseen)
        for cache, plan in _caches(losses, of_weights, profile):
            measured = losses.of_plan(cache, plan, unseen)
            added, error = added_loss(measured, own)
            report.row(
                "weights of 4 bits, losses on unseen text (Table 6.4)",
                weights=name,
                cache=cache,
                added_loss=added,
                standard_error=error,
                over_these_weights=added_loss(measured, same_weights)[0],
            )
    report.note(
        f"weights: SmolLM2, 4 bits by torchao in groups of {_GROUP} of all products but the "
        "output's, rounded to nearest, where the paper has GPTQ's; its file has weights of 4 bits, "
        "too, read as bfloat16. Added loss: over bfloat16 weights and their own cache"
    )
    rows.clear()


def _missing() -> str | None:
    if find_spec("torchao") is None:
        return "torchao not found: .venv/bin/pip install -r requirements/bench-attention.txt"
    return smollm2_missing()


def _with_few_bits(subject: Subject) -> Subject:
    """Return the model with codes of 4 bits for weights; the output's are as they were."""
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    model = copy.deepcopy(subject.model)

    def is_coded(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and name != "lm_head"

    config: Any = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(_GROUP))
    quantize_(model, config, filter_fn=is_coded)
    return replace(subject, model=model)


def _caches(
    losses: Losses, subject: Subject, profile: AttentionProfile
) -> Iterator[tuple[str, AttentionPlan | None]]:
    """Yield the compared caches, with names."""
    size = f"{_CLUSTERS} of {profile.layers[0].heads.query_heads} heads"
    yield "own", None
    yield f"CHAI, {size}", own_membership(full_plan(profile), _CLUSTERS)
    yield (
        f"headrace, {size}",
        chosen_clusters(losses, profile, _CLUSTERS, subject.samples.plan),
    )
    yield from bit_plans(full_plan(profile))
