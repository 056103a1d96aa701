"""``headrace attention evaluate``: loss on text, and scores of tasks, with a plan and without."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.attention.cli.models import (
    FolderArgument,
    PlanOption,
    Skip,
    TextOption,
    TypeOption,
    check_positions,
    element_bytes,
    load_folder,
)
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import GROUP_TOKENS, StorageFormat
from headrace.attention.plan.plan import AttentionPlan
from headrace.cli.console import terminal
from headrace.cli.options import count, flag, refuse_without_effect
from headrace.cli.progress import Report, progress
from headrace.cli.tables import rows
from headrace.extras import require
from headrace.settings import read_local_data_sets

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_CONTINUATION = "continuation"
_CONTINUATION_TOKENS = 16
_LOSS_TOKENS = 1024
_TOKENS = 20_480
_QUESTIONS = 200
_QUESTION_TOKENS = 256
_SCORE_COLUMNS = ("task", "questions", "metric", "model's own", "plan's", "change")
_Tokens = Annotated[int | None, count("Tokens of text to read.", least=1, default=str(_TOKENS))]
_SampleTokens = Annotated[
    int | None,
    count(
        "Tokens of a sample, or of a question of text.",
        least=16,
        default=f"{_LOSS_TOKENS}; {_QUESTION_TOKENS} of a question",
    ),
]
_Tasks = Annotated[
    str | None,
    typer.Option(
        help="Measure these instead, separated by commas: continuation (of the text, which of "
        "four it has), or tasks of lm-eval."
    ),
]
_Limit = Annotated[
    int | None, count("Questions of each task, at most.", least=4, default=str(_QUESTIONS))
]
_TaskFolder = Annotated[
    Path | None, typer.Option(help="Folder with more tasks, in lm-eval's format.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """Loss on text with the model's own cache and with the plan's.

    Attributes
    ----------
    added_error : standard error of `added`; None: of one sample, which has none.
    """

    own: float
    planned: float
    added: float
    added_error: float | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """A metric of a task, and its standard error, with the model's own cache and the plan's."""

    task: str
    questions: int
    metric: str
    own: float
    own_error: float | None
    planned: float
    planned_error: float | None
    change: float
    change_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Loss on text, or scores of tasks, at a share of the bytes."""

    share: float
    loss: LossResult | None
    scores: list[ScoreResult]


def _check_tasks(others: Sequence[str], folder: Path | None) -> None:
    """Raise AttentionError if tasks cannot be run; `others` are those of lm-eval."""
    if others:
        require("lm_eval", "tasks", f"evaluating {', '.join(others)}")
    if folder is not None and not folder.is_dir():
        raise AttentionError(f"--task-folder is {folder}, which is no folder")


def _check_effects(
    names: Sequence[str] | None, others: Sequence[str], options: Mapping[str, object]
) -> None:
    """Raise InputError if an option is given that nothing uses of what is measured.

    Parameters
    ----------
    names : of tasks; None: the loss is measured.
    others : those of lm-eval.
    options : by name; None or False: not given.
    """
    of_text = names is None or _CONTINUATION in names
    for has_effect, idle, reason in (
        (names is None, ("--tokens",), "with --tasks"),
        (names is not None, ("--limit",), "without --tasks"),
        (of_text, ("--text", "--sample-tokens", "--skip"), "on tasks of lm-eval"),
        (bool(others), ("--task-folder", "--download"), "without --tasks of lm-eval"),
    ):
        if not has_effect:
            refuse_without_effect({name: options[name] for name in idle}, reason)


def evaluate_command(
    folder: FolderArgument,
    plan: PlanOption,
    text: TextOption = None,
    tokens: _Tokens = None,
    sample_tokens: _SampleTokens = None,
    skip: Skip = 0,
    tasks: _Tasks = None,
    limit: _Limit = None,
    task_folder: _TaskFolder = None,
    download: Annotated[
        bool, flag("--download", "Fetch a task's data that is not on this machine.")
    ] = False,
    dtype: TypeOption = "float32",
) -> EvaluationResult:
    """Measure the loss of a model on text, or its scores of tasks, with a plan and without.

    Example: headrace attention evaluate ./model --plan model.plan
    """
    cache_plan = AttentionPlan.load(plan)
    names = None if tasks is None else _names(tasks, cache_plan, str(plan))
    others = [name for name in names or () if name != _CONTINUATION]
    _check_tasks(others, task_folder)
    options = {
        "--text": text or None,
        "--tokens": tokens,
        "--sample-tokens": sample_tokens,
        "--skip": skip or None,
        "--limit": limit,
        "--task-folder": task_folder,
        "--download": download,
    }
    _check_effects(names, others, options)
    model, tokenizer = load_folder(folder, dtype)
    cache_plan = replace(cache_plan, element_bytes=element_bytes(model))  # for its share
    from headrace.attention.measure.text import text_of_files, token_samples

    def samples(count: int, size: int) -> "Tensor":
        check_positions(model, size, "--sample-tokens")
        return token_samples(tokenizer, text_of_files(text or ()), count, size, skip=skip)

    if names is None:
        size = sample_tokens or _LOSS_TOKENS
        _check_length(cache_plan, size)
        losses = _losses(model, cache_plan, samples(-(-(tokens or _TOKENS) // size), size))
        return EvaluationResult(share=cache_plan.share, loss=losses, scores=[])
    scores: list[ScoreResult] = []
    if _CONTINUATION in names:
        size = sample_tokens or _QUESTION_TOKENS
        _check_length(cache_plan, size - _CONTINUATION_TOKENS)
        questions = samples(limit or _QUESTIONS, size)
        scores.append(_continuation_score(model, cache_plan, questions))
    if others:
        most = limit or _QUESTIONS
        scores += _harness_scores(
            model, tokenizer, cache_plan, others, most, task_folder, download=download
        )
    _print_scores(scores, cache_plan.share)
    return EvaluationResult(share=cache_plan.share, loss=None, scores=scores)


def _check_length(plan: AttentionPlan, tokens: int) -> None:
    """Raise AttentionError if texts of so many tokens do not show what a plan loses.

    Keys have no 4 bits in a group that is not complete, and all heads before these are clustered.
    """
    grouped = any(layer.keys is StorageFormat.INT4 for layer in plan.layers)
    clustered = any(layer.clustered and layer.representatives is None for layer in plan.layers)
    least = max(GROUP_TOKENS * grouped, plan.first_tokens * clustered)
    if 0 < tokens <= least:
        raise AttentionError(
            f"--sample-tokens leave texts of {tokens} tokens, whose keys the plan does not "
            f"compress: needs more than {least}"
        )


def _print_scores(scores: list[ScoreResult], share: float) -> None:
    title = f"at {share:z.0%} of the cache's bytes; with standard errors"
    for part in rows(title, _SCORE_COLUMNS, list(map(_score_row, scores)), everything=True):
        terminal().print(part)


def _score_row(score: ScoreResult) -> tuple[str, ...]:
    return (
        score.task,
        str(score.questions),
        score.metric,
        _score(score.own, score.own_error),
        _score(score.planned, score.planned_error),
        _change(score.change, score.change_error),
    )


def _names(tasks: str, plan: AttentionPlan, source: str) -> list[str]:
    if plan.layers == plan.uncompressed().layers:
        raise AttentionError(
            f"{source} keeps all as the model's own cache does: there is nothing to evaluate"
        )
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise AttentionError("--tasks names none, needs continuation, or tasks of lm-eval")
    return list(dict.fromkeys(names))


def _losses(model: "Module", plan: AttentionPlan, samples: "Tensor") -> LossResult:
    from headrace.attention.plan.choose import added_loss
    from headrace.attention.run.loss import sample_losses

    with progress(terminal(stderr=True), visible=True) as report:
        own = sample_losses(model, None, samples, report)
        planned = sample_losses(model, plan, samples, report)
    added, error = added_loss(planned, own)
    console = terminal()
    before, after = fmean(own), fmean(planned)
    console.print(f"loss {before:.4f}, with the plan {after:.4f}")
    single = len(samples) == 1
    accuracy = "one sample, without a standard error" if single else f"standard error {error:z.2%}"
    console.print(
        f"added {added:+z.2%} ({accuracy}) at {plan.share:z.0%} of the "
        f"cache's bytes, on {samples.numel():,} tokens"
    )
    return LossResult(
        own=before,
        planned=after,
        added=added,
        added_error=None if single else error,
        tokens=samples.numel(),
    )


def _continuation_score(model: "Module", plan: AttentionPlan, samples: "Tensor") -> ScoreResult:
    from headrace.attention.plan.choose import mean_and_error
    from headrace.attention.run.continuation_task import answered, continuation_questions

    questions = continuation_questions(samples, _CONTINUATION_TOKENS)
    with progress(terminal(stderr=True), visible=True) as report:
        own = answered(model, None, questions, _within(report, "model's own", 0))
        planned = answered(model, plan, questions, _within(report, "plan's", 1))
    changes = [after - before for before, after in zip(own, planned, strict=True)]
    own_score, own_error = mean_and_error(own)
    planned_score, planned_error = mean_and_error(planned)
    change, change_error = mean_and_error(changes)
    return ScoreResult(
        task=_CONTINUATION,
        questions=len(questions),
        metric="accuracy",
        own=own_score,
        own_error=own_error,
        planned=planned_score,
        planned_error=planned_error,
        change=change,
        change_error=change_error,
    )


def _harness_scores(
    model: "Module",
    tokenizer: Any,
    plan: AttentionPlan,
    names: list[str],
    limit: int,
    task_folder: Path | None,
    *,
    download: bool,
) -> Iterator[ScoreResult]:
    if not download:
        read_local_data_sets()
    from headrace.attention.run.harness import load_tasks, task_scores

    loaded = load_tasks(names, task_folder, download=download)
    with progress(terminal(stderr=True), visible=True) as report:
        own, planned = (
            task_scores(
                model,
                tokenizer,
                used,
                loaded,
                limit=limit,
                progress=_within(report, name, part),
            )
            for part, (name, used) in enumerate((("model's own", None), ("plan's", plan)))
        )
    for before, after in zip(own, planned, strict=True):
        yield ScoreResult(
            task=before.task,
            questions=before.questions,
            metric=before.metric,
            own=before.score,
            own_error=before.error,
            planned=after.score,
            planned_error=after.error,
            change=after.score - before.score,
            change_error=None,
        )


def _within(report: Report, name: str, part: int) -> Callable[[str, float], None]:
    """Return the progress of the first or second half."""
    return lambda what, share: report(f"{name}: {what}", (part + share) / 2)


def _score(score: float, error: float | None) -> str:
    return f"{score:.4g}" if error is None else f"{score:.4g} ± {error:.2g}"


def _change(change: float, error: float | None) -> str:
    return f"{change:+z.2g}" if error is None else f"{change:+z.2g} ± {error:.2g}"
