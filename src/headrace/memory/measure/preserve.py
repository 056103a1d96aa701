"""The user's objects and random generators around a trace, which runs `forward` on fake tensors."""

# pyright: reportPrivateUsage=false

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from headrace.memory.generators import host_generators_preserved
from headrace.memory.locks import CAPTURES
from headrace.memory.measure.function_caches import caches_emptied
from headrace.memory.measure.probe import is_probe
from headrace.preserve import objects_preserved


@contextmanager
def preserved(*roots: Any) -> Generator[None]:
    """Leave models, and the random generators, as they are: whatever the block does or raises.

    Blocks of other threads wait for the end of this one, as they would set back what it changes.

    Parameters
    ----------
    roots : modules and optimizers; see `headrace.preserve.objects_preserved`.
    """
    devices = {parameter.device for root in roots for parameter in _parameters(root)}
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    with (
        CAPTURES,
        parametrized_anew(),
        _caches_emptied(roots),
        host_generators_preserved(),
        torch.random.fork_rng(accelerators),
        objects_preserved(*roots, opaque=is_probe),
    ):
        yield


@contextmanager
def parametrized_anew() -> Generator[None]:
    """Compute parametrized tensors anew within the block, where `parametrize.cached` keeps them."""
    outside, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = outside


@contextmanager
def attributes_preserved(*roots: Any) -> Generator[None]:
    """Leave models' attributes as they are, within a trace, where tensors are traced ones."""
    with objects_preserved(*roots, tensors=False, opaque=is_probe):
        yield


@contextmanager
def _caches_emptied(roots: Iterable[Any]) -> Generator[None]:
    with ExitStack() as stack:
        for root in roots:
            if isinstance(root, nn.Module):
                stack.enter_context(caches_emptied(root))
        yield


def _parameters(root: Any) -> Iterable[torch.Tensor]:
    return root.parameters() if isinstance(root, nn.Module) else ()
