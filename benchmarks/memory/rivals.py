"""Rivals: other ways to train in less memory, on one footing.

Each makes the forward pass of a network's copy; names of parameters stay the same, so that
gradients compare. Most recompute the units in `blocks` of a network (`benchmarks.memory.networks`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager_decomp_partition, boxed_nop
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from benchmarks.memory.step import Step
from benchmarks.memory.workloads import Workload

Forward = Callable[[Tensor, Tensor], Tensor]
"""Inputs and targets -> loss."""

FRACTIONS = (0.9, 0.5, 0.3, 0.1, 0.0)
"""Of `activation_memory_budget`: 1 is what the partitioner stores for speed, 0 the inputs alone."""

LOSS_CHUNKS = 8
"""Parts of the tokens, one after another, where a rival splits the loss."""

_aten = torch.ops.aten
_COMPUTE = [
    _aten.convolution.default,
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Operators whose results a selective checkpoint stores: all that take long."""

dynamo_config.recompile_limit = 256  # every rival's copy of a network is compiled on its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A way to train.

    Attributes
    ----------
    prepare : changes a network, and returns its forward pass with the loss.
    kernels : of the operators, where they are not eager's.
    """

    name: str
    prepare: Callable[[Workload, nn.Module], Forward]
    kernels: str = "eager's"

    def step(self, workload: Workload, batch: int | None = None) -> Step:
        """Return a step on the workload's network; `batch` as in `Workload.make`."""
        model, inputs, targets = workload.make(batch)
        forward = self.prepare(workload, model)
        return Step(model=model, forward=forward, inputs=inputs, targets=targets)


def eager(workload: Workload, model: nn.Module) -> Forward:
    """Return the forward pass of the network as it is."""
    return lambda inputs, targets: workload.loss(model(inputs), targets)


def units(model: nn.Module) -> list[nn.Module]:
    """Return the modules that a checkpoint recomputes: `blocks`, or the stages of a U."""
    blocks = getattr(model, "blocks", None)
    if blocks is not None:
        return list(blocks)
    return [*getattr(model, "encoder"), *getattr(model, "decoder")]  # noqa: B009


def recompute(units: Iterable[nn.Module], **how: Any) -> None:
    """Let each unit store its inputs alone, and run again in the backward pass."""
    for unit in units:
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False, **how)


def _by_block(workload: Workload, model: nn.Module) -> Forward:
    recompute(units(model))
    return eager(workload, model)


def _by_block_and_split_loss(workload: Workload, model: nn.Module) -> Forward:
    recompute(units(model))
    return split_loss(workload, model)


def split_loss(workload: Workload, model: Any) -> Forward:
    """Return the forward pass of a GPT whose head and loss run by parts of the tokens."""

    def part(hidden: Tensor, targets: Tensor) -> Tensor:
        return workload.loss(model.head(hidden), targets)

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        parts = zip(
            model.hidden(inputs).chunk(LOSS_CHUNKS, 1), targets.chunk(LOSS_CHUNKS, 1), strict=True
        )
        losses = [
            checkpoint(part, hidden, found, use_reentrant=False) * found.numel()
            for hidden, found in parts
        ]
        return torch.stack(losses).sum() / targets.numel()

    return forward


def _by_square_root(workload: Workload, model: nn.Module) -> Forward:
    blocks = model.get_submodule("blocks")
    parts = list(blocks.children())
    count = max(2, round(math.sqrt(len(parts))))
    blocks.forward = lambda inputs: checkpoint_sequential(  # pyright: ignore[reportAttributeAccessIssue]
        parts, count, inputs, use_reentrant=False
    )
    return eager(workload, model)


def _selective(workload: Workload, model: nn.Module) -> Forward:
    contexts = partial(create_selective_checkpoint_contexts, _COMPUTE)
    recompute(units(model), context_fn=contexts)
    return eager(workload, model)


def without_statistics(model: nn.Module) -> None:
    """Take the running statistics from all batch norms: they normalize by the batch's alone."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            module.track_running_stats = False
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(module, name, None)


def compiled(
    workload: Workload, model: nn.Module, *, fraction: float, decomposed: bool, statistics: bool
) -> Forward:
    """Return a forward pass by torch's partitioner under `activation_memory_budget`, run eagerly.

    Parameters
    ----------
    decomposed : with Inductor's decompositions, which compute batch norms by other kernels.
    statistics : with the running statistics of batch norms. Without decompositions, a batch norm
        that is recomputed reads them after they were changed, and the backward pass fails.
    """
    if not statistics:
        without_statistics(model)
    # an object of its own: torch.compile shares code among networks of the same backend
    backend = (
        partial(aot_eager_decomp_partition)
        if decomposed
        else aot_autograd(
            fw_compiler=boxed_nop,
            bw_compiler=boxed_nop,
            partition_fn=min_cut_rematerialization_partition,
        )
    )
    outputs = torch.compile(model, backend=backend, dynamic=False)

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        with functorch_config.patch(activation_memory_budget=fraction):
            return workload.loss(outputs(inputs), targets)

    return forward


EAGER = Rival(name="eager", prepare=eager)
BY_BLOCK = Rival(name="checkpoint, per block", prepare=_by_block)
BY_SQUARE_ROOT = Rival(name="checkpoint, sqrt(n)", prepare=_by_square_root)
SELECTIVE = Rival(name="selective checkpoint", prepare=_selective)
SPLIT_LOSS = Rival(name="checkpoint, per block, loss split", prepare=_by_block_and_split_loss)
CHECKPOINTS = (BY_BLOCK, BY_SQUARE_ROOT, SELECTIVE)


def stock(fractions: Sequence[float], *, decomposed: bool = False) -> list[Rival]:
    """Return `activation_memory_budget` at some fractions.

    With eager's kernels batch norms have no running statistics, as it does not run otherwise.
    """
    return [
        Rival(
            name=f"memory budget {fraction:g}",
            prepare=partial(
                compiled, fraction=fraction, decomposed=decomposed, statistics=decomposed
            ),
            kernels="decomposed" if decomposed else "eager's",
        )
        for fraction in fractions
    ]
