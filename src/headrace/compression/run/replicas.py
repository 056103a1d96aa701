"""Hybrid sharding: a rank's shard, reduced within its host, is averaged among its replicas."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from headrace.compression.averaging import Averager
from headrace.compression.errors import CompressionError
from headrace.compression.policy import Policy
from headrace.compression.run.exchanger import Exchanger, ExchangeStatistics
from headrace.compression.run.gradient_scale import GradientScale
from headrace.compression.run.shards import ShardedGroup
from headrace.compression.traffic import allreduce_bytes


class ReplicaAverage:
    """All-reduce hook of one module: averages this rank's shard among its replicas."""

    def __init__(
        self,
        group: ShardedGroup,
        policy: Policy,
        replicas: dist.ProcessGroup,
        scale: GradientScale,
        start_after: int = 0,
    ) -> None:
        self._group, self._replicas, self._scale = group, replicas, scale
        self._exchanger = Exchanger(replicas)
        self.statistics = ExchangeStatistics()
        shapes = {column.name: column.shard for column in group.columns}
        self.averager = Averager(
            policy, shapes, rank=replicas.rank(), ranks=replicas.size(), start_after=start_after
        )

    def __call__(self, reduced: Tensor) -> None:
        """Replace the reduced gradient with its mean; with its sum, if the model has a divisor."""
        self._average(reduced)
        if self._group.inner.gradient_divide_factor is not None:
            reduced.mul_(self._replicas.size())

    def _average(self, reduced: Tensor) -> None:
        sizes, columns = self._group.sizes, self._group.columns
        exchanger, sums = self._exchanger, self.statistics
        exchanger.sent_bytes = exchanger.compute_s = exchanger.exchange_s = 0.0
        plain_bytes = allreduce_bytes(reduced.nbytes, self._replicas.size())
        sums.steps += 1
        sums.plain_bytes += plain_bytes
        if not self._group.are_all(reduced.numel()):  # not all parameters took part in this step
            dist.all_reduce(reduced, group=self._replicas)
            reduced.div_(self._replicas.size())
            sums.sent_bytes += plain_bytes
            return
        gradients = [
            (column.name, part[: math.prod(column.shard)].view(column.shard))
            for part, column in zip(reduced.split(sizes), columns, strict=True)
        ]
        self.averager.rescale(self._scale.follow())
        try:
            exchanger.run(self.averager.add(gradients, last=True))
            encode_s = exchanger.compute_s
            exchanger.run(self.averager.finish())
        except BaseException:
            self.averager.abort()
            raise
        sums.sent_bytes += exchanger.sent_bytes
        sums.encode_s += encode_s
        sums.decode_s += exchanger.compute_s - encode_s
        sums.exchange_s += exchanger.exchange_s
        sums.exposed_s += exchanger.exchange_s

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state of its shard, and the shard's number."""
        shard = {"shard": self._group.rank, "shards": self._group.ranks, "holders": 1}
        return {**shard, **self.averager.state_dict(), "scale": self._scale.factor}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> str:
        """Continue from states of this shard; or, where shards were others, from all ranks'.

        Residuals are then cut anew, and codecs start without their warm starts. Returns why the
        saved codecs are not used; "": they are.
        """
        group = self._group
        if states and int(states[0]["shards"]) != group.ranks:
            states = self._cut_anew(states)
        else:
            states = [
                {**state, **{key: group.trained(state[key]) for key in ("codecs", "parameters")}}
                for state in states
                if state["shard"] == group.rank
            ]
        reason = self.averager.reason_against(states[0]) if states else ""
        self.averager.load_state_dict(states, codecs=not reason)
        self.averager.rescale(self._scale.load(states[0].get("scale")))
        return reason

    def _cut_anew(self, states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return states of this rank's shard, made from those of all old shards."""
        group, by_rank = self._group, {(int(s["rank"]), int(s["shard"])): s for s in states}
        replicas, shards = int(states[0]["ranks"]), int(states[0]["shards"])
        cut: list[dict[str, Any]] = []
        for replica in range(replicas):
            if any((replica, shard) not in by_rank for shard in range(shards)):
                raise CompressionError(
                    f"states are of {len(by_rank)} of {replicas} x {shards} ranks, this model has "
                    f"{group.ranks} shards: needs the list of all"
                )
            parameters_by_shard = [by_rank[replica, shard]["parameters"] for shard in range(shards)]
            parameters: dict[str, Any] = {}
            for column in group.columns:
                parts = [
                    saved.get(column.name, {}).get("residual") for saved in parameters_by_shard
                ]
                if all(part is None for part in parts):
                    continue
                empty = column.empty_shards(shards)  # too small for a codec, where there is none
                pairs = zip(parts, empty, strict=True)
                parts = [zeros if part is None else part.cpu() for part, zeros in pairs]
                for part, zeros in zip(parts, empty, strict=True):
                    group.check({column.name: part}, {column.name: tuple(zeros.shape)})
                joined = column.join(parts)
                own = column.split(joined, group.ranks)[group.rank]
                own = own.narrow(column.dim, 0, column.shard[column.dim]).contiguous()
                parameters[column.name] = {"residual": own, "states": {}}
            codecs = {name: str(spec) for name, spec in self.averager.codecs.items()}
            cut.append(
                {
                    "rank": replica,
                    "ranks": replicas,
                    "step": by_rank[replica, 0]["step"],
                    "scale": by_rank[replica, 0].get("scale"),
                    "codecs": codecs,
                    "parameters": parameters,
                }
            )
        return cut
