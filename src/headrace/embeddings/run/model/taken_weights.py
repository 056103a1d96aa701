"""Embedding weights, which leave a model and its optimizer, and return to them if `fit` fails."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from headrace.embeddings.run.model.modules import EmbeddingModule
from headrace.embeddings.run.model.optimizer_groups import remove_parameters

_OF_PARAMETERS = ("params", "param_names")
"""Columns of an optimizer's groups that have an entry for each parameter."""


@contextmanager
def taken_weights(
    modules: Sequence[EmbeddingModule], optimizer: torch.optim.Optimizer
) -> Generator[list[Tensor]]:
    """Take the weights of modules from these and from their optimizer; yield them.

    If the block fails, modules and optimizer are as before it.
    """
    weights = [embedding.module.weight for embedding in modules]
    restores = [embedding.restoring() for embedding in modules]
    groups = [
        {column: group[column] for column in _OF_PARAMETERS if column in group}
        for group in optimizer.param_groups
    ]
    states = {weight: optimizer.state[weight] for weight in weights if weight in optimizer.state}
    remove_parameters(optimizer, weights)
    try:
        yield [embedding.take_weight() for embedding in modules]
    except BaseException:
        for restore in restores:
            restore()
        for group, columns in zip(optimizer.param_groups, groups, strict=True):
            group.update(columns)
        optimizer.state.update(states)
        raise
