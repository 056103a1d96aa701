"""SmolLM2's loss after contexts of which kvpress removes tokens, or a plan bytes of each token."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from benchmarks.attention.quality_compared import bit_plans, full_plan
from benchmarks.attention.quality_losses import Subject
from benchmarks.attention.quality_models import smollm2_missing
from benchmarks.attention.quality_subjects import model_states, profile_of, smollm2_subject
from benchmarks.harness import ROOT, Report
from benchmarks.installed import installed
from headrace.attention.plan.choose import added_loss
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.compress import evaluated

SECTION = "kvpress"
FULL_ONLY = True
_TABLE = "losses after a compressed context, beside kvpress"
_SAMPLES = 10
_CONTINUATION = 256
"""Tokens of a sample whose losses are compared; those before are the context."""
_SAME = 0.01
"""Relative difference of a loss by two versions of Transformers without compression."""
_JOB_S = 3600.0


def bars() -> dict[str, str]:
    """Return no bars: kvpress removes tokens, which passes of text show less than questions do."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Measure kvpress's methods in their own environment, and plans of as few bytes in this one.

    Raises
    ------
    ArithmeticError : without compression the losses of the two environments differ.
    """
    if missing := smollm2_missing():
        report.note(f"kvpress: {missing}")
        return
    try:
        folder = installed("attention", "kvpress")
    except (OSError, subprocess.SubprocessError) as error:
        report.row(_TABLE, method="kvpress", not_measured=f"not installed: {error}")
        return
    subject = smollm2_subject(quick)
    samples = subject.samples.unseen[:_SAMPLES]
    context = samples.shape[1] - _CONTINUATION
    profile = profile_of(subject, model_states(report))
    plans = dict(bit_plans(full_plan(profile)))
    saved = {name: 1 - plan.share for name, plan in plans.items()}
    pressed = _losses_of_kvpress(folder, subject, samples, context, list(saved.values()))
    own = _losses_after(subject.model, None, samples, context)
    _check(sum(pressed.pop(("none", 0.0))), sum(own))
    for name, plan in plans.items():
        _row(report, name, saved[name], _losses_after(subject.model, plan, samples, context), own)
        for (press, removed), losses in pressed.items():
            if removed == saved[name]:
                _row(report, f"kvpress, {press}", removed, losses, own)
    report.note(
        f"kvpress: {len(samples)} contexts of {context} tokens of SmolLM2, the losses of the "
        f"{_CONTINUATION} tokens after each; kvpress 0.5.5 removes tokens of the context, plans "
        "bits of all"
    )


def _row(report: Report, method: str, saved: float, losses: list[float], own: list[float]) -> None:
    added, error = added_loss(losses, own)
    report.row(_TABLE, method=method, saved=saved, added_loss=added, standard_error=error)


def _check(theirs: float, ours: float) -> None:
    if not abs(theirs / ours - 1) <= _SAME:
        raise ArithmeticError(
            f"without compression the losses add up to {theirs:.4f} in kvpress's environment and "
            f"to {ours:.4f} here"
        )


def _losses_of_kvpress(
    packages: Path, subject: Subject, samples: Tensor, context: int, shares: list[float]
) -> dict[tuple[str, float], list[float]]:
    """Return the losses of every sample by method and share of the context's bytes that go."""
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        torch.save(samples.clone(), Path(folder) / "samples.pt")
        settings = {"context": context, "shares": shares}
        (Path(folder) / "settings.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "benchmarks.attention.losses_of_kvpress", folder]
        environment = {**os.environ, "PYTHONPATH": f"{packages}:{ROOT.parent}"}
        job = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, timeout=_JOB_S
        )
    rows = map(json.loads, job.stdout.splitlines())
    return {(row["press"], row["removed"]): row["losses"] for row in rows}


def _losses_after(
    model: Any, plan: AttentionPlan | None, samples: Tensor, context: int
) -> list[float]:
    """Return the mean loss of the tokens after a context, which a plan's cache stores."""
    losses: list[float] = []
    with evaluated(model, plan):
        for sample in samples:
            cache = DynamicCache() if plan is None else CompressedCache(plan)
            model(input_ids=sample[None, :context], cache=cache, logits_to_keep=1)
            continuation = sample[context:]
            logits = model(input_ids=continuation[None], cache=cache).logits[0]
            losses.append(float(functional.cross_entropy(logits[:-1].float(), continuation[1:])))
    return losses
