"""Quality: bytes that a plan saves under an allowed loss, and its losses beside other methods'.

Three models (`quality_models`): trained here, grown from it, and SmolLM2. Plans are made by the
product from a profile and from losses on text that the models were not trained on; what is printed
and held against bars was measured on text after that. Losses that were measured are kept until a
full run has ended: an interrupted one goes on.
"""

from collections.abc import Iterator

from benchmarks.attention import quality_models
from benchmarks.attention.quality_compared import compared_methods
from benchmarks.attention.quality_losses import Losses, Subject
from benchmarks.attention.quality_models import QUICK
from benchmarks.attention.quality_saved import saved_bytes
from benchmarks.attention.quality_subjects import (
    model_states,
    profile_of,
    smollm2_subject,
    trained_subjects,
)
from benchmarks.harness import Report
from benchmarks.kept import KeptRows

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
    rows = KeptRows(
        "attention", "quality", quick=quick, folder=report.state_folder, quiet=("losses",)
    )
    figures: dict[str, list[float]] = {name: [] for name in bars()}
    for subject in _subjects(report, quick):
        losses = Losses(rows, subject)
        profile = profile_of(subject, model_states(report))
        for name, figure in (
            *saved_bytes(report, subject, losses, profile, quick),
            *compared_methods(report, subject, losses, profile, quick),
        ):
            figures.setdefault(name, []).append(figure)
    for name, required in bars().items():
        worst = max if required.startswith("<=") else min
        if figures[name]:
            report.bar(name, worst(figures[name]))
    rows.clear()


def _subjects(report: Report, quick: bool) -> Iterator[Subject]:
    """Yield SmolLM2, and the models of all seeds; quick: the grown one of one seed."""
    if quick:
        report.note(
            f"quality: one seed of {QUICK.plain_tokens:,} tokens, and less text to measure on"
        )
    if missing := quality_models.smollm2_missing():
        report.note(f"quality: {missing}")
    else:
        yield smollm2_subject(quick)
    for seed in SEEDS[: 1 if quick else None]:
        yield from trained_subjects(report, seed, quick)
