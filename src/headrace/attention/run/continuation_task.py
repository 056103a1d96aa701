"""A task of multiple choice from any text: which continuation is the one that the text has.

The other choices are continuations of other places of the text. Nothing is downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from headrace.attention.errors import AttentionError
from headrace.attention.measure.likeness import SampleProgress
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.compress import evaluated
from headrace.attention.run.scoring import score_continuations

CHOICES = 4
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationQuestion:
    """A context and its choices, of equal length, in tokens.

    Attributes
    ----------
    answer : index of the choice that follows the context in the text.
    """

    context: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    answer: int


def continuation_questions(samples: Tensor, length: int) -> tuple[ContinuationQuestion, ...]:
    """Return a question for each sample [samples, tokens]: which are its newest tokens.

    The same ones for the same samples.

    Parameters
    ----------
    length : tokens of a choice.

    Raises
    ------
    AttentionError : samples are no longer than a choice, or have too few different ends.
    """
    if samples.shape[1] <= length:
        raise AttentionError(
            f"samples have {samples.shape[1]} tokens, needs more than the {length} of a choice"
        )
    rows = [tuple(row) for row in samples.tolist()]
    endings = [row[-length:] for row in rows]
    distinct = sorted(set(endings))
    if len(distinct) < CHOICES:
        raise AttentionError(
            f"the text's samples have {len(distinct)} different ends of {length} tokens, a "
            f"question needs {CHOICES}: pass more text by --text"
        )
    generator = np.random.default_rng(_SEED)
    questions: list[ContinuationQuestion] = []
    for row, ending in zip(rows, endings, strict=True):
        order = generator.permutation(len(distinct))[:CHOICES]
        choices = [distinct[index] for index in order if distinct[index] != ending][: CHOICES - 1]
        answer = int(generator.integers(CHOICES))
        choices.insert(answer, ending)
        questions.append(
            ContinuationQuestion(context=row[:-length], choices=tuple(choices), answer=answer)
        )
    return tuple(questions)


def answered(
    model: nn.Module,
    plan: AttentionPlan | None,
    questions: Sequence[ContinuationQuestion],
    progress: SampleProgress,
) -> list[bool]:
    """Return whether a model's most probable choice is the answer, of every question.

    Raises
    ------
    AttentionError : with a plan no question's context was compressed.
    """
    correct: list[bool] = []
    read_compressed = False
    with evaluated(model, plan):
        for index, question in enumerate(questions):
            progress(f"question {index + 1} of {len(questions)}", index / len(questions))
            result = score_continuations(model, plan, question.context, question.choices)
            scores = [score.log_probability for score in result.scores]
            correct.append(scores.index(max(scores)) == question.answer)
            read_compressed |= result.compressed
    if plan is not None and not read_compressed:
        raise AttentionError(NOTHING_COMPRESSED)
    return correct


NOTHING_COMPRESSED = (
    "nothing was compressed: the plan keeps all, or the task's contexts are shorter than what it "
    "compresses; take a plan of fewer bytes, or a task with longer contexts"
)
