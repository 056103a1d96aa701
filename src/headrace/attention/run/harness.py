"""Tasks of lm-eval over compressed caches.

lm-eval scores a context and its continuation in one call, in which a cache method changes nothing.
Here they are two calls (`headrace.attention.run.scoring`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.attention.errors import AttentionError
from headrace.attention.lm_eval import (
    TaskManager,
    TemplateLM,
    dataset_settings,
    normalize_gen_kwargs,
    simple_evaluate,
)
from headrace.attention.measure.likeness import SampleProgress
from headrace.attention.models import position_limit
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.compress import evaluated
from headrace.attention.run.continuation_task import NOTHING_COMPRESSED
from headrace.attention.run.scoring import is_compressed, score_continuations

_ROLLING_TOKENS = 64
"""Tokens of a text that are scored in one call, after those before it."""
_NEW_TOKENS = 256
"""Most tokens of an answer, where a task does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScore:
    """One metric of one task.

    Attributes
    ----------
    error : standard error; None where the task has none.
    """

    task: str
    questions: int
    metric: str
    score: float
    error: float | None


def load_tasks(names: Sequence[str], folder: Path | None, *, download: bool) -> dict[str, Any]:
    """Return tasks of lm-eval by name, with their data.

    Parameters
    ----------
    folder : with the user's own tasks, in lm-eval's format; beside lm-eval's.
    download : fetch data that is not on this machine.

    Raises
    ------
    AttentionError : a task is unknown, or its data is not on this machine.
    """
    if not download and not dataset_settings.HF_HUB_OFFLINE:
        raise AttentionError(
            "the datasets library was imported before, and may download: set HF_DATASETS_OFFLINE=1 "
            "at the start, or pass --download"
        )
    manager = TaskManager(include_path=None if folder is None else str(folder))
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise AttentionError(
            f"--tasks names {', '.join(unknown)}, which lm-eval does not have: lm-eval ls tasks "
            "lists them, --task-folder adds your own"
        )
    tasks: dict[str, Any] = {}
    for name in names:
        try:
            tasks |= manager.load([name])["tasks"]
        except Exception as error:  # of many types: of the network, of files, of the task's code
            reason = " ".join(str(error).split())
            remedy = (
                "pass a task of --task-folder with data of your own, or --tasks continuation"
                if download
                else "pass --download to fetch it, or copy Hugging Face's cache of a machine that "
                "has it"
            )
            raise AttentionError(
                f"the data of task {name} is not on this machine ({reason}): {remedy}"
            ) from error
    return tasks


def task_scores(
    model: nn.Module,
    tokenizer: Any,
    plan: AttentionPlan | None,
    tasks: dict[str, Any],
    *,
    limit: int,
    progress: SampleProgress,
) -> tuple[MetricScore, ...]:
    """Return the metrics of tasks, of at most so many questions each; None: the model's own cache.

    Raises
    ------
    AttentionError : with a plan nothing was compressed.
    """
    adapter = _Adapter(model, tokenizer, plan, progress)
    with evaluated(model, plan):
        results: Any = simple_evaluate(
            model=adapter, tasks=[*tasks.values()], limit=limit, log_samples=False
        )
    if plan is not None and not adapter.compressed:
        raise AttentionError(NOTHING_COMPRESSED)
    return tuple(
        score
        for name, metrics in results["results"].items()
        if name in results["n-samples"]
        for score in _metrics(name, results["n-samples"][name]["effective"], metrics)
    )


def _metrics(task: str, questions: int, results: dict[str, Any]) -> list[MetricScore]:
    """Return the numbers of one task's results, which are named "metric,filter"."""
    scores: list[MetricScore] = []
    for key, number in results.items():
        metric, _, filtered = key.partition(",")
        if not filtered or metric.endswith("_stderr") or not isinstance(number, float | int):
            continue
        error = results.get(f"{metric}_stderr,{filtered}")
        scores.append(
            MetricScore(
                task=task,
                questions=questions,
                metric=metric if filtered == "none" else f"{metric} ({filtered})",
                score=float(number),
                error=error if isinstance(error, float) else None,
            )
        )
    return scores


class _Adapter(TemplateLM):
    """A model as lm-eval asks it, over a cache by a plan or the model's own."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, plan: AttentionPlan | None, progress: SampleProgress
    ) -> None:
        super().__init__()
        self._model = model
        self._plan = plan
        self._progress = progress
        self.tokenizer = tokenizer
        self.compressed = False

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text."""
        return _first_of(self.tokenizer.eos_token_id, self.tokenizer.bos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Token before a text that has no context, as for lm-eval's own models."""
        return _first_of(self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the tokens of a text; one that begins with BOS gets no second one."""
        del kwargs
        begin = self.tokenizer.bos_token
        if add_special_tokens is None and begin is not None and string.startswith(begin):
            add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return self.tokenizer(string, **special)["input_ids"]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Score continuations; those of one context follow each other, and share its cache."""
        del kwargs
        scores: list[tuple[float, bool]] = []
        for context, group in groupby(requests, key=lambda request: request[1]):
            continuations = [continuation for _, _, continuation in group]
            result = score_continuations(self._model, self._plan, context, continuations)
            self.compressed |= result.compressed
            scores.extend((score.log_probability, score.greedy) for score in result.scores)
            self._progress(
                f"{len(scores)} of {len(requests)} continuations", len(scores) / len(requests)
            )
        return scores

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Score continuations of contexts; with one bar for all, which is not lm-eval's."""
        del disable_tqdm
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Score whole texts, a part after the other."""
        del disable_tqdm
        sums: list[float] = []
        for index, request in enumerate(requests):
            self._progress(f"text {index + 1} of {len(requests)}", index / len(requests))
            text = self.tok_encode(request.args[0], add_special_tokens=False)
            sums.append(self._text_score([self.prefix_token_id, *text]))
        return sums

    def _text_score(self, tokens: list[int]) -> float:
        """Return the log-probability of all tokens but the first, each after all before it.

        At most half of a model's positions are context.
        """
        limit = position_limit(self._model)
        most = len(tokens) if limit is None else limit // 2
        step = min(_ROLLING_TOKENS, max(1, most))
        total = 0.0
        for first in range(1, len(tokens), step):
            context = tokens[max(0, first - most) : first]
            part = tokens[first : first + step]
            result = score_continuations(self._model, self._plan, context, [part])
            self.compressed |= result.compressed
            total += result.scores[0].log_probability
        return total

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Continue contexts up to texts that end an answer."""
        del disable_tqdm
        answers: list[str] = []
        for index, request in enumerate(requests):
            self._progress(f"answer {index + 1} of {len(requests)}", index / len(requests))
            answers.append(self._answer(*request.args))
        return answers

    def _answer(self, context: str, request: dict[str, Any]) -> str:
        options = normalize_gen_kwargs(request, _NEW_TOKENS)
        until, length = options.pop("until"), options.pop("max_gen_toks")
        stops = [stop for stop in (*until, self.tokenizer.eos_token) if stop]
        if not options["do_sample"]:
            options.pop("temperature", None)  # 0, of which `generate` warns
        tokens = self.tok_encode(context) or [self.prefix_token_id]
        limit = position_limit(self._model)
        if limit is not None:
            if length >= limit:
                raise AttentionError(
                    f"a task asks for answers of {length} tokens, the model has positions for "
                    f"{limit}: leave it out, or lower its max_gen_toks in a --task-folder"
                )
            tokens = tokens[length - limit :]
        inputs = torch.tensor([tokens], device=next(self._model.parameters()).device)
        cache = None if self._plan is None else CompressedCache(self._plan)
        model: Any = self._model
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=length,
            **options,
            stopping_criteria=[self._ended(len(tokens), stops)],
            **({} if cache is None else {"cache": cache}),
        )
        self.compressed |= cache is not None and is_compressed(cache)
        answer = self.tokenizer.decode(output[0, len(tokens) :], skip_special_tokens=True)
        ends = [answer.find(stop) for stop in stops if stop in answer]
        return answer[: min(ends, default=len(answer))]

    def _ended(self, first: int, stops: list[str]) -> Callable[..., Tensor]:
        """Return whether an answer that begins at a token has a text that ends it.

        Of decoded texts: Transformers' own criterion does not read every tokenizer's words.
        """

        def ended(tokens: Tensor, scores: Any, **options: Any) -> Tensor:
            del scores, options
            texts = self.tokenizer.batch_decode(tokens[:, first:])
            ends = [any(stop in text for stop in stops) for text in texts]
            return torch.tensor(ends, device=tokens.device)

        return ended


def _first_of(*tokens: int | None) -> int:
    """Return the first token that a tokenizer has."""
    return next((token for token in tokens if token is not None), 0)
