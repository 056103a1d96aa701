"""Quality: bytes that a plan saves under an allowed loss, and its losses beside other methods'.

Three models (`quality_models`): trained here, grown from it, and SmolLM2. Plans are made by the
product from a profile and from losses on text that the models were not trained on; what is printed
and held against bars was measured on text after that. Losses that were measured are kept until a
full run has ended: an interrupted one goes on.
"""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.attention import quality_models, quality_text
from benchmarks.attention.quality_compared import compared_methods
from benchmarks.attention.quality_losses import Losses, Samples, Subject, silent
from benchmarks.attention.quality_models import FULL, QUICK, STATES
from benchmarks.attention.quality_saved import saved_bytes
from benchmarks.harness import Report
from benchmarks.kept import KeptRows, settings_of
from headrace.attention.measure.likeness import measure_likeness
from headrace.attention.measure.text import documentation, token_samples
from headrace.attention.models import model_digest
from headrace.attention.profile import AttentionProfile

SEEDS = (0, 1, 2, 3, 4)
EXCEEDED = 1.1
"""Times an allowed loss that the loss on unseen text may be, less two standard errors."""
NOT_IN_QUICK = frozenset({"guards-grown", "guards-smollm2"})


def bars() -> dict[str, str]:
    """Return the bars: of the worst seed."""
    return {
        "saved-at-1%-grown": ">=0.5",
        "saved-at-1%-clusters-grown": ">=0.15",
        "saved-at-1%-smollm2": ">=0.5",
        "clusters-over-chai-grown": "<=0.5",
        "clusters-over-chai-smollm2": "<=0.5",
        "guards-grown": f"<={EXCEEDED}",
        "guards-smollm2": f"<={EXCEEDED}",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Train, plan and compare; a full run can be interrupted."""
    rows = KeptRows("attention", "quality", quick=quick, quiet=("losses",))
    figures: dict[str, list[float]] = {name: [] for name in bars()}
    for subject in _subjects(report, quick):
        losses = Losses(rows, subject)
        profile = _profile(subject)
        for name, figure in (
            *saved_bytes(report, subject, losses, profile, quick),
            *compared_methods(report, subject, losses, profile, quick),
        ):
            figures.setdefault(name, []).append(figure)
    for name, required in bars().items():
        worst = max if required.startswith("<=") else min
        if figures[name]:
            report.bar(name, worst(figures[name]))
    report.note(
        "kvpress needs Transformers below 5.3 and is not compared here: python -m venv kvpress && "
        "kvpress/bin/pip install kvpress 'transformers<5.3'"
    )
    rows.clear()


def _profile(subject: Subject) -> AttentionProfile:
    """Return the profile of a model: measured, or stored by an earlier run."""
    samples = subject.samples.profile
    digest = settings_of(model_digest(subject.model), samples.tolist())
    path = STATES / f"profile-{digest}.attention-profile"
    if not path.exists():
        profile = measure_likeness(subject.model, samples, text="", progress=silent)
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.save(path)
    return AttentionProfile.load(path)


def _subjects(report: Report, quick: bool) -> Iterator[Subject]:
    """Yield SmolLM2, and the models of all seeds; quick: the grown one of one seed."""
    if quick:
        report.note(
            f"quality: one seed of {QUICK.plain_tokens:,} tokens, and less text to measure on"
        )
    if missing := quality_models.smollm2_missing():
        report.note(f"quality: {missing}")
    else:
        yield _smollm2(quick)
    for seed in SEEDS[: 1 if quick else None]:
        yield from _trained(report, seed, quick)


def _trained(report: Report, seed: int, quick: bool) -> Iterator[Subject]:
    training = QUICK if quick else FULL
    grown = quality_models.grown_model(seed, training)
    differences = quality_models.pair_differences(grown)
    report.row(
        "differences of pairs of heads that were grown from one",
        seed=seed,
        least_of_queries=float(differences[:, 0].min()),
        least_of_keys=float(differences[:, 1].min()),
        largest=float(differences.max()),
    )
    counts = (4, 10, 5) if quick else (16, 40, 391)
    samples = _samples(quality_text.byte_tokens, quality_text.held_out_text(), 512, counts)
    models = {"grown": (grown, (12, 8), (12, 8))}
    if not quick:
        models["plain"] = (quality_models.plain_model(seed, training), (6, 4), ())
    for name, (model, clusters, barred) in models.items():
        yield Subject(
            name=name,
            seed=seed,
            model=model.to(torch.bfloat16),
            tokenizer=None,
            samples=samples,
            clusters=clusters,
            barred=barred,
        )


def _smollm2(quick: bool) -> Subject:
    model, tokenizer = quality_models.smollm2()
    tokens, counts = (512, (4, 3, 4)) if quick else (1024, (8, 20, 196))
    return Subject(
        name="smollm2",
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
