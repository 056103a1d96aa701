"""Bytes that the product's plans save under allowed losses, and what they lose on unseen text."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.attention import quality_text
from benchmarks.attention.quality_losses import CHUNK, Losses, Subject, plan_settings
from benchmarks.output import Output
from headrace.attention.measure.text import token_samples
from headrace.attention.plan.choose import added_loss, choose
from headrace.attention.plan.formats import StorageFormat
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.profile import AttentionProfile
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.compress import compressed

SAVED_AT = 0.01
ALLOWED = (SAVED_AT, 0.005, 0.02, 0.05)
"""Relative to the model's own loss; the one with a bar first."""
ELEMENT_BYTES = 2
_CACHE_TOKENS = 2048
_PASSKEYS = 10


def saved_bytes(
    output: Output, subject: Subject, losses: Losses, profile: AttentionProfile, quick: bool
) -> Iterator[tuple[str, float]]:
    """Plan for allowed losses; yield what is saved, and losses on unseen text over the allowed."""
    measured: dict[str, AttentionPlan] = {}

    def measure_plan(name: str, plan: AttentionPlan) -> list[float]:
        measured[name] = plan
        return losses.of_plan(name, plan, subject.samples.plan)

    for allowed in (SAVED_AT,) if quick else ALLOWED:
        plan = choose(profile, measure_plan, allowed_loss=allowed, element_bytes=ELEMENT_BYTES)
        own = losses.of_plan("own", None, subject.samples.unseen)
        added, error = added_loss(losses.of_plan(plan.chosen, plan, subject.samples.unseen), own)
        saved = 1 - _allocated_share(subject, plan)
        output.row(
            "bytes saved under an allowed loss, and the loss on unseen text",
            **subject.row,
            allowed=allowed,
            cache=plan.chosen,
            saved=saved,
            unseen_loss=added,
            standard_error=error,
            **({} if quick else _elsewhere(subject, losses, plan)),
        )
        if subject.name != "plain" and not quick:
            yield f"guards-{subject.name}", (added - 2 * error) / allowed
        if allowed == SAVED_AT and subject.name != "plain":
            yield f"saved-at-1%-{subject.name}", saved
    if subject.name == "grown":
        yield "saved-at-1%-clusters-grown", _saved_by_clusters(output, subject, losses, measured)


def _saved_by_clusters(
    output: Output, subject: Subject, losses: Losses, measured: dict[str, AttentionPlan]
) -> float:
    """Return what the plans save that share heads in the model's type."""
    own = losses.of_plan("own", None, subject.samples.plan)
    model_type = {StorageFormat.MODEL}
    best, saved = "none", 0.0
    for name, plan in measured.items():
        if {form for layer in plan.layers for form in (layer.keys, layer.values)} != model_type:
            continue
        added, error = added_loss(losses.of_plan(name, plan, subject.samples.plan), own)
        if added + error <= SAVED_AT and 1 - plan.share > saved:
            best, saved = name, 1 - plan.share
    output.row("bytes saved by clusters alone", **subject.row, cache=best, saved=saved)
    return saved


def _allocated_share(subject: Subject, plan: AttentionPlan) -> float:
    """Return the bytes of a cache of 2,048 tokens, as allocated, over those of a stock cache."""
    tokens = subject.samples.unseen.flatten()
    tokens = tokens.repeat(-(-_CACHE_TOKENS // len(tokens)))[None, :_CACHE_TOKENS]
    cache = CompressedCache(plan)
    with torch.no_grad(), compressed(subject.model, plan):
        subject.model(input_ids=tokens, cache=cache, logits_to_keep=1)
    stock = sum(
        2 * layer.heads.key_value_heads * layer.heads.dim * ELEMENT_BYTES for layer in plan.layers
    )
    return cache.allocated_bytes / (stock * _CACHE_TOKENS)


def _elsewhere(subject: Subject, losses: Losses, plan: AttentionPlan) -> dict[str, Any]:
    """Return a plan's loss in another domain, and the pass keys that are found, own and plan's."""
    tokens = subject.samples.plan.shape[1]
    tokenizer = subject.tokenizer or quality_text.byte_tokens
    text = quality_text.source_text(CHUNK * tokens * 8)
    samples = token_samples(tokenizer, text, CHUNK, tokens)
    own = losses.of_plan("own", None, samples)
    columns: dict[str, Any] = {
        "source_code": added_loss(losses.of_plan(plan.chosen, plan, samples), own)[0]
    }
    if subject.tokenizer is not None:
        for name, named in (("own", None), (plan.chosen, plan)):
            column = "passkeys_own" if named is None else "passkeys"
            columns[column] = _passkeys(subject, losses, name, named)
    return columns


def _passkeys(subject: Subject, losses: Losses, name: str, plan: AttentionPlan | None) -> float:
    """Return the share of pass keys in prompts of 2,048 tokens that are repeated."""
    prompts = quality_text.passkey_prompts(subject.tokenizer, _CACHE_TOKENS, _PASSKEYS)

    def repeated(part: Tensor) -> list[float]:
        answers: list[float] = []
        for tokens, (_, passkey) in zip(part, prompts, strict=True):
            prompt = tokens[None]
            options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
            if plan is None:
                output = subject.model.generate(prompt, **options)
            else:
                with compressed(subject.model, plan):
                    output = subject.model.generate(prompt, **options)
            answer = subject.tokenizer.decode(output[0, prompt.shape[1] :])
            answers.append(float(passkey in answer))
        return answers

    tokens = torch.cat([prompt for prompt, _ in prompts])
    return float(
        np.mean(losses.measured(f"passkeys {name} {plan_settings(plan)}", tokens, repeated))
    )
