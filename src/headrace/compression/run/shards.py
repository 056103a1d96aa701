"""Parameters that a module of FSDP2 shards together: the layout of their reduced gradient."""

# torch does not export FSDP's parts, and offers no list of a module's parameters in the order in
# which they are reduced.
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from headrace.compression.errors import CompressionError
from headrace.compression.run.hooked import GRADIENT_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedParameter:
    """A parameter in its module's reduced gradient.

    Attributes
    ----------
    shape, padded, shard : shapes of the parameter, of a padded shard (equal on all ranks), and of
        this rank's shard without padding.
    dim : that is sharded.
    """

    name: str
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    shard: tuple[int, ...]
    dim: int

    @property
    def elements(self) -> int:
        """Number of elements of a padded shard."""
        return math.prod(self.padded)

    def join(self, shards: Iterable[Tensor]) -> Tensor:
        """Return the parameter of all shards in order, of any number of ranks, padded or not."""
        return torch.cat(list(shards), self.dim).narrow(self.dim, 0, self.shape[self.dim])

    def split(self, parameter: Tensor, ranks: int) -> Sequence[Tensor]:
        """Return the padded shards of all ranks."""
        shape = list(self.padded)
        shape[self.dim] *= ranks
        filled = parameter.new_zeros(shape)
        filled.narrow(self.dim, 0, self.shape[self.dim]).copy_(parameter)
        return filled.split(self.padded[self.dim], self.dim)

    def empty_shards(self, ranks: int) -> Sequence[Tensor]:
        """Return zeros in the shapes of shards of any number of ranks, without padding."""
        zeros = torch.zeros(self.shape, dtype=torch.float32, device="cpu")
        length = -(-self.shape[self.dim] // ranks)
        starts = [min(rank * length, self.shape[self.dim]) for rank in range(ranks + 1)]
        return [zeros.narrow(self.dim, a, b - a) for a, b in pairwise(starts)]


def _in_order_of_reduction(parameters: Sequence[Any]) -> list[Any]:
    """Return a module's parameters as their gradients follow each other in the reduced one.

    From torch 2.15 on, those whose sharded gradients have one type are side by side.
    """
    by_type: dict[Any, list[Any]] = {}
    for parameter in parameters:
        by_type.setdefault(getattr(parameter, "sharded_grad_dtype", None), []).append(parameter)
    return [parameter for alike in by_type.values() for parameter in alike]


class ShardedGroup:
    """The parameters that one module shards together, and that are not frozen.

    Attributes
    ----------
    name : of the module.
    columns : its parameters in the order of the reduced gradient.
    rank, ranks : of this rank's shard, and of shards.
    replicas : of each shard, which torch averages itself.
    """

    def __init__(self, name: str, module: FSDPModule, names: Mapping[Tensor, str]) -> None:
        groups = module._get_fsdp_state()._fsdp_param_groups
        if len(groups) > 1:
            raise CompressionError(f"module {name!r} has parameters on several meshes, needs one")
        self.name, self.module = name, module
        self.inner: Any = groups[0] if groups else None
        mesh = self.inner.mesh_info if groups else None
        if mesh is not None and mesh.shard_mesh_dim is None:
            raise CompressionError(
                f"module {name!r} is replicated, not sharded: needs fully_shard, or "
                "DistributedDataParallel and ddp_hook"
            )
        sharded = _in_order_of_reduction(self.inner.fsdp_params) if groups else []
        parts = self._parts = [part for part in sharded if part.sharded_param.requires_grad]
        frozen = [part for part in sharded if not part.sharded_param.requires_grad]
        self._frozen = {names[part.sharded_param] for part in frozen}
        self.columns = [
            ShardedParameter(
                name=names[part.sharded_param],
                shape=tuple(part._orig_size),
                padded=tuple(part.padded_sharded_param_size),
                shard=tuple(part.sharded_size),
                dim=part.fsdp_placement.dim,
            )
            for part in parts
        ]
        self.parameters = {names[p.sharded_param]: p.sharded_param for p in parts}
        self.sizes = [column.elements for column in self.columns]
        self.rank = int(mesh.shard_mesh_rank) if mesh else 0
        self.ranks = int(mesh.shard_mesh_size) if mesh else 1
        self.replicas = int(getattr(mesh, "replicate_mesh_size", 1))
        for name, parameter in self.parameters.items():
            if parameter.dtype not in GRADIENT_TYPES:
                raise CompressionError(
                    f"parameter {name!r} is {parameter.dtype}, needs one of "
                    f"{', '.join(map(str, GRADIENT_TYPES))}"
                )

    def are_all(self, elements: int) -> bool:
        """Return whether a reduced gradient of so many elements is that of all columns."""
        trained = all(part.sharded_param.requires_grad for part in self._parts)
        return trained and elements == sum(self.sizes)

    def padding(self) -> list[tuple[int, slice]]:
        """Return the rows of the reduced gradient and their elements that are of no parameter."""
        rows: list[tuple[int, slice]] = []
        end = 0
        for column in self.columns:
            end += column.elements
            length = column.padded[column.dim]
            for rank in range(self.ranks):  # only the first dimension can be uneven
                missing = min(length, max(0, (rank + 1) * length - column.shape[column.dim]))
                if missing:
                    rows.append((rank, slice(end - missing * (column.elements // length), end)))
        return rows

    def trained(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return entries by parameter name without those of frozen parameters."""
        return {name: entry for name, entry in entries.items() if name not in self._frozen}

    def check(self, state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise CompressionError unless residuals, by name, have these shapes; frozen ones any."""
        state_shapes = {n: tuple(r.shape) for n, r in self.trained(state).items()}
        if wrong := [name for name in state_shapes if state_shapes[name] != shapes.get(name)]:
            raise CompressionError(
                f"residual of {wrong[0]!r} has shape {state_shapes[wrong[0]]}, needs "
                f"{shapes.get(wrong[0], 'a parameter of module ' + repr(self.name))}"
            )
