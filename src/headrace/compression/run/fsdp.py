"""Compressed gradients of fully sharded models (FSDP2, `torch.distributed.fsdp.fully_shard`).

Fully sharded, the reduce-scatter of every module is replaced (`reduce_scatter`). Where hosts shard
inside and replicate across slow links (hybrid sharding), gradients are sharded uncompressed within
the host, and each shard is averaged among its replicas by any codec (`replicas`).
"""

# pyright: reportPrivateUsage=false

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec, codec_spec
from headrace.compression.names import parameter_names, unwrapped_name
from headrace.compression.policy import Policy, reason_against_patterns
from headrace.compression.run.exchanger import ExchangeStatistics
from headrace.compression.run.figures import HookFigures, figures_of
from headrace.compression.run.gradient_scale import GradientScale, check_scaler
from headrace.compression.run.hooked import one_device
from headrace.compression.run.reduce_scatter import CompressedReduceScatter
from headrace.compression.run.replicas import ReplicaAverage
from headrace.compression.run.same import require_same
from headrace.compression.run.shards import ShardedGroup
from headrace.compression.savings import reason_without_savings
from headrace.facades import offered_by


@offered_by("headrace.compression")
class FsdpHook(HookFigures):
    """Hooks of a model's modules; see `headrace.compression.fsdp_hook`."""

    def __init__(
        self,
        model: nn.Module,
        policy: Policy | CodecSpec | str,
        replicas: dist.ProcessGroup | None,
        scaler: Any,
        start_after: int = 0,
    ) -> None:
        check_scaler(scaler)
        rules = policy if isinstance(policy, Policy) else Policy(codec=policy)
        groups = _sharded_groups(model)
        if replicas is not None and any(group.inner._is_hsdp for group in groups):
            raise CompressionError(
                "the model's mesh has replicas, which torch averages itself: needs fully_shard "
                "over the ranks of one host, and the replicas' process group here"
            )
        everyone = replicas or groups[0].inner.mesh_info.shard_process_group
        shapes = [
            (parameter.name, parameter.padded) for group in groups for parameter in group.columns
        ]
        for group in groups:
            one_device(group.parameters, everyone)
        require_same(
            {
                "policies": rules,
                "types of residuals": rules.residuals,
                "values of start_after": start_after,
                "uses of replicas": replicas is not None,
                "parameters": shapes,
            },
            "All need the same.",
            group=everyone,
            error=CompressionError,
        )
        self._parts = {
            group.name: CompressedReduceScatter(group, rules, GradientScale(scaler), start_after)
            if replicas is None
            else ReplicaAverage(group, rules, replicas, GradientScale(scaler), start_after)
            for group in groups
        }
        self._rank = dist.get_rank()
        codec = self._codec = codec_spec(rules.codec)
        for reason in (
            reason_against_patterns(rules, parameter_names(model).values()),
            reason_without_savings(rules, [codec], dict(shapes), everyone.size()),
        ):
            if reason is not None and everyone.rank() == 0:
                warnings.warn(reason, stacklevel=3)
        for group in groups:
            part = self._parts[group.name]
            if isinstance(part, ReplicaAverage):
                group.module.set_all_reduce_hook(part)
            else:
                group.module.set_custom_reduce_scatter(part)

    def __repr__(self) -> str:
        return f"<FsdpHook: {self._codec} for {len(self._parts)} sharded modules>"

    @property
    def sent_bytes(self) -> float:
        """Bytes of gradients that this rank has sent."""
        return self.statistics.sent_bytes

    @property
    def statistics(self) -> ExchangeStatistics:
        """Sums over the modules; `steps` are those of the module that has most."""
        parts = [part.statistics for part in self._parts.values()]
        sums = ExchangeStatistics(
            **{
                name: sum(getattr(part, name) for part in parts)
                for name in ExchangeStatistics.__slots__
            }
        )
        sums.steps = max(part.steps for part in parts)
        return sums

    def figures(self) -> dict[str, float]:
        """Return the sums over all steps by name, with ``saved_bytes``."""
        return figures_of(self.statistics)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by module; to be saved by every rank.

        Fully sharded, this copies the residual: as much memory as an unsharded gradient.
        """
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's state, or from the list of all ranks' states.

        The list may be of another number of ranks, shards or replicas: the residuals' mean over
        the ranks is kept, as by `Averager.load_state_dict`; residuals follow the difference of the
        scaler's scale to the saved one. Where shards are others, warm starts
        are not. Codecs are the saved ones if the policy is; else those of this hook, and the first
        rank warns.

        Raises
        ------
        CompressionError : states are missing, or of other modules or parameters, or of a hook with
            replicas where this has none (or the other way round).
        """
        saved = [states] if isinstance(states, Mapping) else list(states)
        for state in saved:
            if set(state) != set(self._parts):
                raise CompressionError(
                    f"state has modules {list(state)}, needs {list(self._parts)}"
                )
        reasons: list[str] = []
        for name, part in self._parts.items():
            own = [state[name] for state in saved]
            if any(("shard" in state) != isinstance(part, ReplicaAverage) for state in own):
                raise CompressionError(
                    "state is of a hook with replicas= or this one is, needs both or neither"
                )
            reasons.append(part.load_state_dict(own))
        if any(reasons) and not self._rank:
            warnings.warn(next(filter(None, reasons)), stacklevel=2)


def _sharded_groups(model: nn.Module) -> list[ShardedGroup]:
    """Return the parameters that modules shard together, or raise CompressionError if none do."""
    sharded = {n: module for n, module in model.named_modules() if isinstance(module, FSDPModule)}
    for module in sharded.values():  # an evaluation leaves parameters whole, the model's own
        module.reshard()
    names = parameter_names(model)
    modules = [ShardedGroup(unwrapped_name(n), module, names) for n, module in sharded.items()]
    # fully_shard([first, second]) gives both modules the same parameters
    groups = {id(group.inner): group for group in modules if group.inner is not None}
    if not groups:
        raise CompressionError(
            f"model is a {type(model).__name__} without sharded modules, needs fully_shard"
        )
    return [*groups.values()]
