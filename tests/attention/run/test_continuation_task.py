"""Scores of continuations against one pass over all tokens, and questions from a text."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional

import headrace.attention
from headrace.attention import AttentionError, AttentionPlan, StorageFormat
from headrace.attention.run.continuation_task import (
    answered,
    continuation_questions,
)
from headrace.attention.run.scoring import score_continuations
from tests.attention.measure.test_likeness import silent
from tests.attention.models import MODELS, WORDS, model_of, plain_plan, shared_plan, with_bits

CONTEXT = list(range(3, 43))
CONTINUATIONS = [[7, 8, 9], [50], [60, 61, 62, 63, 64]]


def one_pass(model: torch.nn.Module, context: list[int], tokens: list[int]) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *tokens[:-1]]])).logits[0, len(context) - 1 :]
    return -float(functional.cross_entropy(logits, torch.tensor(tokens), reduction="sum"))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_two_calls_score_as_one_pass(name: str) -> None:
    model = model_of(name)
    expected = [one_pass(model, CONTEXT, tokens) for tokens in CONTINUATIONS]
    plan = plain_plan(model)
    own = score_continuations(model, None, CONTEXT, CONTINUATIONS)
    with headrace.attention.compress(model, plan):
        planned = score_continuations(model, plan, CONTEXT, CONTINUATIONS)
    for result in (own, planned):
        scores = [score.log_probability for score in result.scores]
        assert scores == pytest.approx(expected, abs=1e-3)
        assert not result.compressed
    short = score_continuations(model, None, CONTEXT[:1], CONTINUATIONS)
    assert short.scores[1].log_probability == pytest.approx(
        one_pass(model, CONTEXT[:1], CONTINUATIONS[1]), abs=1e-3
    )


@torch.no_grad()
def test_greedy_is_what_the_model_continues_with() -> None:
    model = model_of("llama")
    tokens = torch.tensor([CONTEXT])
    greedy = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=3, do_sample=False
    )[0, len(CONTEXT) :].tolist()
    other = [*greedy[:-1], (greedy[-1] + 1) % WORDS]
    scores = score_continuations(model, None, CONTEXT, [greedy, other]).scores
    assert [score.greedy for score in scores] == [True, False]


@torch.no_grad()
def test_a_single_token_is_scored_over_the_compressed_context() -> None:
    """In one call with the context fewer bits would change nothing."""
    model = model_of("llama")
    exact = score_continuations(model, None, CONTEXT, [[5]]).scores[0].log_probability
    for plan in (
        with_bits(plain_plan(model), StorageFormat.INT8, StorageFormat.INT8),
        shared_plan(model, fixed=True),
        shared_plan(model, fixed=False),
    ):
        with headrace.attention.compress(model, plan):
            result = score_continuations(model, plan, CONTEXT, [[5]])
            assert result.compressed
            assert result.scores[0].log_probability != exact
            # nothing is stored before a single token
            assert not score_continuations(model, plan, CONTEXT[:1], [[5]]).compressed
    four = with_bits(plain_plan(model), StorageFormat.INT4, StorageFormat.MODEL)
    with headrace.attention.compress(model, four):
        assert not score_continuations(model, four, CONTEXT, [[5]]).compressed, "no whole group"
        assert score_continuations(model, four, CONTEXT * 2, [[5]]).compressed


@pytest.mark.parametrize("context_tokens", [2, 61])
@pytest.mark.parametrize("keys", StorageFormat)
@pytest.mark.parametrize("plan_of", [plain_plan, partial(shared_plan, fixed=False)])
@torch.no_grad()
def test_a_score_does_not_depend_on_the_length_of_other_choices(
    plan_of: Callable[[torch.nn.Module], AttentionPlan], keys: StorageFormat, context_tokens: int
) -> None:
    """Padding of the shorter row closed a group of 64 keys, and changed their units."""
    model = model_of("llama")
    plan = with_bits(plan_of(model), keys, StorageFormat.INT8)
    generator = torch.Generator().manual_seed(0)
    context, choice, middle, long = (
        torch.randint(3, WORDS, (count,), generator=generator).tolist()
        for count in (context_tokens, 3, 10, 30)
    )
    with headrace.attention.compress(model, plan):
        alone = [
            score_continuations(model, plan, context, [tokens]).scores[0]
            for tokens in (long, choice, middle)
        ]
        beside = score_continuations(model, plan, context, [long, choice, middle]).scores
    for single, score in zip(alone, beside, strict=True):
        assert score.log_probability == pytest.approx(single.log_probability, abs=1e-5)
        assert score.greedy == single.greedy


@torch.no_grad()
def test_a_context_longer_than_a_models_positions_loses_its_beginning() -> None:
    model = model_of("opt")
    limit = model.config.max_position_embeddings
    context = [3 + place % 90 for place in range(limit + 40)]
    scores = score_continuations(model, None, context, [[5, 6]]).scores
    cut = context[-(limit - 1) :]
    assert scores[0].log_probability == pytest.approx(one_pass(model, cut, [5, 6]), abs=1e-3)


def test_questions_have_the_texts_own_ends_among_others() -> None:
    samples = torch.randint(3, WORDS, (40, 24), generator=torch.Generator().manual_seed(0))
    questions = continuation_questions(samples, 8)
    assert questions == continuation_questions(samples, 8)
    ends = {tuple(row[-8:]) for row in samples.tolist()}
    for row, question in zip(samples.tolist(), questions, strict=True):
        assert list(question.context) == row[:-8]
        assert list(question.choices[question.answer]) == row[-8:]
        assert len(set(question.choices)) == 4
        assert set(question.choices) <= ends
    assert {question.answer for question in questions} == {0, 1, 2, 3}
    with pytest.raises(AttentionError, match="have 1 different ends of 8 tokens, a question needs"):
        continuation_questions(samples[:1].repeat(9, 1), 8)
    with pytest.raises(AttentionError, match="have 24 tokens, needs more than the 24 of a choice"):
        continuation_questions(samples, 24)


def test_a_model_that_continues_with_the_text_answers_right() -> None:
    """The ends are what the model generates itself, so that these are more likely than others."""
    model = model_of("llama")
    starts = torch.randint(3, WORDS, (12, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        samples = model.generate(
            starts,
            attention_mask=torch.ones_like(starts),
            max_new_tokens=6,
            min_new_tokens=6,
            do_sample=False,
        )
    questions = continuation_questions(samples, 6)
    assert all(answered(model, None, questions, silent))
    plan = with_bits(plain_plan(model), StorageFormat.INT8, StorageFormat.INT8)
    assert sum(answered(model, plan, questions, silent)) >= 10
    assert sum(answered(model, shared_plan(model, fixed=True), questions, silent)) < 12


def test_a_plan_that_keeps_all_is_not_evaluated() -> None:
    model = model_of("llama")
    samples = torch.randint(3, WORDS, (4, 12))
    questions = continuation_questions(samples, 3)
    with pytest.raises(AttentionError, match="nothing was compressed: the plan keeps all"):
        answered(model, plain_plan(model), questions, silent)
