"""The user's objects and random generators around a trace, which runs `forward` on fake tensors."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headrace.memory.generators import host_generators_preserved
from headrace.memory.locks import CAPTURES
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
        host_generators_preserved(),
        torch.random.fork_rng(accelerators),
        objects_preserved(*roots, opaque=is_probe),
    ):
        yield


@contextmanager
def attributes_preserved(*roots: Any) -> Generator[None]:
    """Leave models' attributes as they are, within a trace, where tensors are traced ones."""
    with objects_preserved(*roots, tensors=False, opaque=is_probe):
        yield


def _parameters(root: Any) -> Iterable[torch.Tensor]:
    return root.parameters() if isinstance(root, nn.Module) else ()
