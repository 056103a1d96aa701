"""Quality: bytes that a plan saves under an allowed loss, and its losses beside other methods'.

Three models (`quality_models`): trained here, grown from it, and SmolLM2. Plans are made by the
product from a profile and from losses on text that the models were not trained on; what is printed
and held against bars was measured on text after that. A full run takes hours. The results of a
model are a line of ``quality.jsonl``, which git has (`benchmarks.kept.CommittedRows`); only models
without one are measured. Losses are kept until all models are: an interrupted run goes on.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.attention import quality_models
from benchmarks.attention.quality_compared import compared_methods
from benchmarks.attention.quality_losses import Losses
from benchmarks.attention.quality_models import FULL, QUICK
from benchmarks.attention.quality_saved import ALLOWED, saved_bytes
from benchmarks.attention.quality_subjects import (
    SMOLLM2,
    SMOLLM2_SAMPLES,
    TRAINED_SAMPLES,
    model_states,
    profile_of,
    smollm2_subject,
    trained_subject,
)
from benchmarks.harness import Report
from benchmarks.kept import CommittedRows, KeptRows, settings_of
from benchmarks.output import Output

MEASURED = Path(__file__).parent / "quality.jsonl"
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
    """Train, plan and compare; a full run can be interrupted, and keeps what it measured."""
    results = (
        KeptRows("attention", "quality-models", quick=True, folder=report.state_folder)
        if quick
        else CommittedRows(MEASURED, "quality", _settings, "models measured")
    )
    losses = KeptRows(
        "attention", "quality", quick=quick, folder=report.state_folder, quiet=("losses",)
    )
    names = list(_model_names(report, quick))
    for name in names:
        if name not in results.rows:
            results.add(name, _measured(name, losses, model_states(report), quick))
    if isinstance(results, CommittedRows):
        report.note(results.note)
    figures: dict[str, list[float]] = {name: [] for name in bars()}
    for output in (Output(**results.rows[name]) for name in names):
        output.add_rows_to(report)
        for bar, figure in output.figures:
            figures[bar].append(figure)
    for name, required in bars().items():
        worst = max if required.startswith("<=") else min
        if figures[name]:
            report.bar(name, worst(figures[name]))
    losses.clear()
    results.clear()


def _settings(name: str) -> str:
    """Return a digest of what a model's results depend on beside the code."""
    if name == SMOLLM2:
        return settings_of(ALLOWED, SMOLLM2_SAMPLES)
    return settings_of(ALLOWED, TRAINED_SAMPLES, FULL)


def _measured(name: str, rows: KeptRows, states: Path, quick: bool) -> dict[str, Any]:
    """Return what the section prints of a model, as `Output` has it."""
    output = Output()
    if name == SMOLLM2:
        subject = smollm2_subject(quick)
    else:
        kind, seed = name.split()
        subject = trained_subject(output, kind, int(seed), states, quick)
    losses = Losses(rows, subject)
    profile = profile_of(subject, states)
    output.figures = [
        (bar, float(figure))
        for bar, figure in chain(
            saved_bytes(output, subject, losses, profile, quick),
            compared_methods(output, subject, losses, profile, quick),
        )
        if bar in bars()
    ]
    return output.columns


def _model_names(report: Report, quick: bool) -> Iterator[str]:
    """Yield SmolLM2, and the models of all seeds; quick: the grown one of one seed."""
    if quick:
        report.note(
            f"quality: one seed of {QUICK.plain_tokens:,} tokens, and less text to measure on"
        )
    if missing := quality_models.smollm2_missing():
        report.note(f"quality: {missing}")
    else:
        yield SMOLLM2
    for seed in SEEDS[: 1 if quick else None]:
        for kind in ("grown",) if quick else ("grown", "plain"):
            yield f"{kind} {seed}"
