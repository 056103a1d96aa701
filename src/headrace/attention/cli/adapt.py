"""``headrace attention adapt``: samples of a text as requests to an adapted plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.attention.cli.models import (
    FolderArgument,
    PlanOption,
    SampleTokens,
    Skip,
    TextOption,
    TextTokens,
    TypeOption,
    check_positions,
    load_folder,
)
from headrace.attention.cli.show import error_text
from headrace.attention.plan.plan import AttentionPlan
from headrace.cli.answers import result_of
from headrace.cli.console import terminal
from headrace.cli.options import output_option
from headrace.cli.progress import progress
from headrace.cli.tables import facts, rows

if TYPE_CHECKING:
    from headrace.attention.adapt.adaptation import AttentionAdaptation


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAdaptResult:
    """Requests to an adapted plan; numbers of clusters, before and at the end."""

    requests: int
    observed: int
    planned_error: float | None
    largest_error: float | None
    clusters_before: int
    clusters: int
    events: list[dict[str, Any]]


def adapt_cache_command(
    folder: FolderArgument,
    plan: PlanOption,
    text: TextOption = None,
    tokens: TextTokens = 20_480,
    sample_tokens: SampleTokens = 1024,
    skip: Skip = 0,
    every: Annotated[int, typer.Option(help="Requests of which one is observed.", min=1)] = 1,
    log: Annotated[
        Path | None,
        output_option("File to which the events are appended as lines of JSON.", "--log"),
    ] = None,
    dtype: TypeOption = "float32",
) -> AttentionAdaptResult:
    """Read a text as requests to a plan that adapts, and print its output errors and clusters.

    Example: headrace attention adapt ./model --plan model.plan --every 4
    """
    cache_plan = AttentionPlan.load(plan)
    model, tokenizer = load_folder(folder, dtype)
    import torch

    from headrace.attention.adapt.adaptation import AttentionAdaptation
    from headrace.attention.measure.text import text_of_files, token_samples

    check_positions(model, sample_tokens, "--sample-tokens")
    samples = token_samples(
        tokenizer, text_of_files(text or ()), -(-tokens // sample_tokens), sample_tokens, skip=skip
    )
    adaptation = AttentionAdaptation(cache_plan, every=every, log_path=log)
    with (
        progress(terminal(stderr=True), visible=True) as report,
        torch.no_grad(),
        adaptation.compressed(model),
    ):
        for index, sample in enumerate(samples):
            report(f"request {index + 1} of {len(samples)}", index / len(samples))
            model(input_ids=sample[None])
    console = terminal()
    console.print(
        facts(
            "adapted",
            {
                "requests": f"{adaptation.requests:,}, of which {adaptation.observed:,} observed",
                "plan's output error": error_text(adaptation.state.planned_error),
                "more clusters above": error_text(adaptation.state.largest_error),
                "clusters": f"{cache_plan.clusters}, in the end {adaptation.plan.clusters}",
            },
        )
    )
    cells = [_event_row(event) for event in adaptation.records.events]
    for part in rows("events", ("event", "clusters", "output error"), cells, everything=False):
        console.print(part)
    return _result(adaptation, cache_plan)


def _result(adaptation: "AttentionAdaptation", before: AttentionPlan) -> AttentionAdaptResult:
    return result_of(
        AttentionAdaptResult,
        adaptation,
        planned_error=adaptation.state.planned_error,
        largest_error=adaptation.state.largest_error,
        clusters_before=before.clusters,
        clusters=adaptation.plan.clusters,
        events=[dict(event) for event in adaptation.records.events],
    )


def _event_row(event: Mapping[str, Any]) -> tuple[str, str, str]:
    error = event.get("output_error")
    return (
        str(event["event"]),
        str(event["clusters"]),
        "" if error is None else f"{error:.2g}",
    )
