"""``headrace attention plan``: bits and heads of keys, by the loss that they add."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.attention.cli.models import (
    FolderArgument,
    TextOption,
    TypeOption,
    check_positions,
    element_bytes,
    load_folder,
)
from headrace.attention.cli.show import cache_tables
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import GROUP_TOKENS
from headrace.attention.plan.plan import AttentionPlan, FrontierPoint
from headrace.attention.profile import AttentionProfile
from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, terminal
from headrace.cli.options import output_option, refuse_without_effect
from headrace.cli.progress import progress

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_ERROR_SAMPLES = 8
"""Held-out samples that the output error is measured on: it varies by less than requests do."""


_LOSS = 0.01
_TOKENS = 20_480


class PlanMethod(StrEnum):
    """Ways to make a plan."""

    LOSS = "loss"
    CHAI = "chai"
    CHAI_STATIC = "chai-static"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlanResult:
    """A plan of a model's cache: the share of its bytes, and the frontier that was measured."""

    file: WrittenFile
    share: float
    point: str
    output_error: float | None
    frontier: list[FrontierPoint]


def cache_plan_command(
    folder: FolderArgument,
    profile: Annotated[Path, typer.Option(help="Measured profile: of the model's attention.")],
    output: Annotated[Path, output_option("File to write: the attention plan.")],
    loss: Annotated[
        float | None,
        typer.Option(
            help="That may be added, relative to the model's own.",
            min=0.0,
            show_default=str(_LOSS),
        ),
    ] = None,
    text: TextOption = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of text to read.", min=1, show_default=str(_TOKENS)),
    ] = None,
    sample_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of a sample; those of the first 64 say little of keys of 4 bits.",
            min=2 * GROUP_TOKENS,
        ),
    ] = 1024,
    method: Annotated[
        PlanMethod,
        typer.Option(
            help="By loss; or the paper's plan, clusters at the elbow, of each request or fixed: "
            "its loss is not measured."
        ),
    ] = PlanMethod.LOSS,
    dtype: TypeOption = "float32",
) -> CachePlanResult:
    """Choose what a model's cache keeps: measure the loss of ever fewer bytes on held-out text.

    The text is read from where the profile's samples end.

    Example: headrace attention plan ./model --profile heads.profile -o model.plan
    """
    _check_method(method, {"--loss": loss, "--text": text, "--tokens": tokens})
    allowed = _allowed(loss)
    measured = AttentionProfile.load(profile)
    model, tokenizer = load_folder(folder, dtype)
    from headrace.attention.models import model_digest, model_weights
    from headrace.attention.plan.chai import chai_plan

    if measured.model != model_digest(model):
        raise AttentionError(
            f"{profile} is of another model, or of this one in another --dtype: measure this one"
        )
    provenance = {"model": str(folder), "profile": measured.digest, "method": method.value}
    if method is PlanMethod.LOSS:
        check_positions(model, sample_tokens, "--sample-tokens")
        samples, digest = _unread_samples(tokenizer, measured, text, tokens, sample_tokens)
        plan = _by_loss(model, measured, samples, allowed, digest)
        provenance |= {"loss": allowed, "tokens": samples.numel()}
    else:
        fixed = method is PlanMethod.CHAI_STATIC
        plan = chai_plan(measured, element_bytes=element_bytes(model), fixed=fixed)
        plan = replace(plan, weights=model_weights(model))
    plan.save(output, provenance)
    print_written(output)
    for table in cache_tables(plan, everything=False):
        terminal().print(table)
    return _result(plan, output)


def _result(plan: AttentionPlan, output: Path) -> CachePlanResult:
    return result_of(
        CachePlanResult,
        plan,
        file=WrittenFile.at(output),
        point=plan.chosen,
        frontier=list(plan.frontier),
    )


def _check_method(method: PlanMethod, options: Mapping[str, object]) -> None:
    """Raise InputError if an option of losses is given for a method that measures none."""
    if method is not PlanMethod.LOSS:
        refuse_without_effect(options, f"with --method {method}, which measures no loss")


def _allowed(loss: float | None) -> float:
    """Return the loss that may be added; raises AttentionError if it is infinite."""
    allowed = _LOSS if loss is None else loss
    if not isfinite(allowed):
        raise AttentionError(f"--loss is {allowed}, needs a finite number")
    return allowed


def _unread_samples(
    tokenizer: Any,
    measured: AttentionProfile,
    text: Sequence[Path] | None,
    tokens: int | None,
    sample_tokens: int,
) -> "tuple[Tensor, str]":
    """Return samples of a text, [samples, tokens], and its digest.

    They begin where the profile's samples end. Of a text with fewer tokens it prints how many.

    Raises
    ------
    AttentionError : there is one sample, or none.
    """
    from headrace.attention.measure.text import text_digest, text_of_files, token_samples

    tokens = tokens or _TOKENS
    source = text_of_files(text or ())
    digest = text_digest(source)
    seen = measured.samples * measured.tokens if measured.text == digest else 0
    samples = token_samples(
        tokenizer,
        source,
        -(-tokens // sample_tokens),
        sample_tokens,
        skip=-(-seen // sample_tokens),
    )
    if len(samples) == 1:
        raise AttentionError(
            f"losses are of one sample of {sample_tokens:,} tokens, needs two: their standard "
            "error counts against --loss; ask for shorter samples (--sample-tokens) or for more "
            "text (--tokens, --text)"
        )
    if samples.numel() < tokens:
        terminal().print(
            f"Losses are of {samples.numel():,} tokens, not {tokens:,}: the text has no more.",
            soft_wrap=True,
        )
    return samples, digest


def _by_loss(
    model: "Module", measured: AttentionProfile, samples: "Tensor", loss: float, text: str
) -> AttentionPlan:
    """Return the plan for a loss on samples of a text of this digest."""
    from headrace.attention.adapt.observe import measured_output_error
    from headrace.attention.models import model_weights
    from headrace.attention.plan.alternatives import with_alternatives
    from headrace.attention.plan.choose import choose
    from headrace.attention.run.loss import sample_losses

    with progress(terminal(stderr=True), visible=True) as report:

        def measure(name: str, plan: AttentionPlan) -> list[float]:
            return sample_losses(
                model, plan, samples, lambda what, share: report(f"{name}: {what}", share)
            )

        plan = choose(measured, measure, allowed_loss=loss, element_bytes=element_bytes(model))
        plan = replace(plan, weights=model_weights(model), text=text)
        plan = with_alternatives(plan, measured)
        if not plan.alternatives:
            return plan
        error = measured_output_error(
            model,
            plan,
            samples[:_ERROR_SAMPLES],
            lambda what, share: report(f"output error: {what}", share),
        )
    return replace(plan, output_error=error)
