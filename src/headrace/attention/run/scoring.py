"""Log-probabilities of continuations of a context, which are computed over its cache.

In two calls: the context's first, whose keys and values are stored, then the continuations', which
read them. In a single call queries read keys and values as they are computed, and 8 or 4 bits would
change nothing.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.attention.models import position_limit
from headrace.attention.plan.formats import GROUP_TOKENS, StorageFormat
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.layer import LayerCache
from headrace.attention.transformers import DynamicCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationScore:
    """Score of one continuation.

    Attributes
    ----------
    log_probability : sum over its tokens, each after all before it.
    greedy : whether each token is the most probable one.
    """

    log_probability: float
    greedy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextScores:
    """Scores of a context's continuations.

    Attributes
    ----------
    compressed : whether the continuations read fewer bytes than the model's own cache has.
    """

    scores: tuple[ContinuationScore, ...]
    compressed: bool


def score_continuations(
    model: nn.Module,
    plan: AttentionPlan | None,
    context: Sequence[int],
    continuations: Sequence[Sequence[int]],
) -> ContextScores:
    """Score continuations of at least a token each, of a context of at least one.

    A score does not depend on the other continuations, but where a model's positions are limited:
    it does not see the beginning of a context that is too long for the longest of them. Call it
    within `headrace.attention.compress` where there is a plan, without gradients.

    Parameters
    ----------
    plan : None: the model's own cache, in two calls, too.
    """
    lengths = sorted({len(tokens) for tokens in continuations})
    limit = position_limit(model)
    if limit is not None:
        context = context[-max(1, limit - lengths[-1] + 1) :]
    device = next(model.parameters()).device
    before, last = list(context[:-1]), context[-1]
    cache = DynamicCache() if plan is None else CompressedCache(plan)
    if before:
        model(input_ids=torch.tensor([before], device=device), cache=cache, logits_to_keep=1)
    compressed = isinstance(cache, CompressedCache) and is_compressed(cache)
    scores: dict[int, ContinuationScore] = {}
    # one call for each length: what filled shorter rows would be stored with their tokens, and
    # change the units of 4-bit keys, membership and the kernel
    for length in lengths:
        places = [place for place, tokens in enumerate(continuations) if len(tokens) == length]
        rows = torch.tensor([[last, *continuations[place][:-1]] for place in places], device=device)
        own_cache = cache if length == lengths[-1] else copy.deepcopy(cache)
        if before:
            own_cache.batch_repeat_interleave(len(rows))
        logits = model(input_ids=rows, cache=own_cache).logits
        for place, row_logits in zip(places, logits, strict=True):
            scores[place] = _score(row_logits, continuations[place])
    return ContextScores(
        scores=tuple(scores[place] for place in range(len(continuations))), compressed=compressed
    )


def _score(logits: Tensor, tokens: Sequence[int]) -> ContinuationScore:
    """Return the score of tokens by the logits [tokens, vocabulary] of their places."""
    logarithms = logits.float().log_softmax(-1)
    targets = torch.tensor(tokens, device=logits.device)
    return ContinuationScore(
        log_probability=float(logarithms.gather(1, targets[:, None]).sum()),
        greedy=bool((logarithms.argmax(-1) == targets).all()),
    )


def is_compressed(cache: CompressedCache) -> bool:
    """Return whether the tokens that a cache holds are read from fewer bytes in some layer."""
    layers: Any = cache.layers
    return any(_reads_fewer_bytes(layer.layer) for layer in layers)


def _reads_fewer_bytes(layer: LayerCache) -> bool:
    plan = layer.plan
    if not layer.tokens or (plan.clustered and layer.representatives is None):
        return False  # the first tokens' keys and values are stored as they are
    if plan.key_heads < plan.heads.key_value_heads or plan.clustered:
        return True
    if plan.values is not StorageFormat.MODEL or plan.keys is StorageFormat.INT8:
        return True
    return plan.keys is StorageFormat.INT4 and layer.tokens >= GROUP_TOKENS
