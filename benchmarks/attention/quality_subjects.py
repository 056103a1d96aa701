"""Models of the quality section with their samples: SmolLM2, and those trained here; profiles."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.attention import quality_models, quality_text
from benchmarks.attention.quality_losses import Samples, Subject, silent
from benchmarks.attention.quality_models import FULL, QUICK
from benchmarks.harness import Report
from benchmarks.kept import settings_of
from benchmarks.output import Output
from headrace.attention.measure.likeness import measure_likeness
from headrace.attention.measure.text import documentation, token_samples
from headrace.attention.models import model_digest
from headrace.attention.profile import AttentionProfile

SMOLLM2 = "smollm2"
SMOLLM2_SAMPLES, TRAINED_SAMPLES = (8, 20, 196), (16, 40, 391)
"""Of a full run: to profile, to plan, and unseen."""


def model_states(report: Report) -> Path:
    """Return the folder of trainings' states and of profiles."""
    return report.state_folder / "quality-models"


def profile_of(subject: Subject, states: Path) -> AttentionProfile:
    """Return the profile of a model: measured, or stored by an earlier run."""
    samples = subject.samples.profile
    digest = settings_of(model_digest(subject.model), samples.tolist())
    path = states / f"profile-{digest}.attention-profile"
    if not path.exists():
        profile = measure_likeness(subject.model, samples, text="", progress=silent)
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.save(path)
    return AttentionProfile.load(path)


def trained_subject(output: Output, kind: str, seed: int, states: Path, quick: bool) -> Subject:
    """Return the model of a seed that was trained, or grown from it ("plain", "grown")."""
    training = QUICK if quick else FULL
    if kind == "plain":
        model, clusters, barred = quality_models.plain_model(seed, training, states), (6, 4), ()
    else:
        model, clusters = quality_models.grown_model(seed, training, states), (12, 8)
        barred = clusters
        differences = quality_models.pair_differences(model)
        output.row(
            "differences of pairs of heads that were grown from one",
            seed=seed,
            least_of_queries=float(differences[:, 0].min()),
            least_of_keys=float(differences[:, 1].min()),
            largest=float(differences.max()),
        )
    counts = (4, 10, 5) if quick else TRAINED_SAMPLES
    return Subject(
        name=kind,
        seed=seed,
        model=model.to(torch.bfloat16),
        tokenizer=None,
        samples=_samples(quality_text.byte_tokens, quality_text.held_out_text(), 512, counts),
        clusters=clusters,
        barred=barred,
    )


def smollm2_subject(quick: bool) -> Subject:
    """Return SmolLM2 in bfloat16."""
    model, tokenizer = quality_models.smollm2()
    tokens, counts = (512, (4, 3, 4)) if quick else (1024, SMOLLM2_SAMPLES)
    return Subject(
        name=SMOLLM2,
        seed=0,
        model=model.to(torch.bfloat16),
        tokenizer=tokenizer,
        samples=_samples(tokenizer, documentation(), tokens, counts),
        clusters=(8,) if quick else (8, 6),
        barred=(8,),
    )


def _samples(tokenizer: Any, text: str, tokens: int, counts: tuple[int, int, int]) -> Samples:
    numbers = token_samples(tokenizer, text, sum(counts), tokens)
    profile, plan, unseen = numbers.split([*counts[:2], len(numbers) - sum(counts[:2])])
    return Samples(profile=profile, plan=plan, unseen=unseen)
