"""Compressed gradients of fully sharded models (FSDP2, `torch.distributed.fsdp.fully_shard`).

Fully sharded, a rank needs the mean of its own shard alone. So a codec's all-to-all of encoded
shards is the whole exchange: nothing is encoded again, and a rank sends (n-1)/n of the encoded
gradient. Error feedback keeps what a rank's own encoding left of its whole gradient.

Where hosts shard inside and replicate across slow links (hybrid sharding), gradients are sharded
uncompressed within the host, and each shard is averaged among its replicas by an `Averager`: any
codec.
"""

# torch does not export GradBucket or FSDP's parts from its stubs, and offers no list of a module's
# parameters in the order in which they are reduced.
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from headrace.compression.averaging import Averager, choose_states
from headrace.compression.bounds import check_feedback
from headrace.compression.codecs.quantizers import Float8, MinMax, SignVote, Stochastic
from headrace.compression.codecs.requests import AllToAll, Context, requested
from headrace.compression.codecs.sharded import Coder
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec, codec_spec
from headrace.compression.policy import Policy
from headrace.compression.run.exchanger import Exchanger
from headrace.compression.run.hook import one_device
from headrace.compression.run.same import require_same
from headrace.compression.savings import reason_without_savings
from headrace.compression.staging import all_finite, read, staging_of
from headrace.compression.traffic import Encoding
from headrace.facades import offered_by

_TYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FLAG_BYTES = 8  # at the end of each row: whether the sender's gradient is finite; keeps alignment


class _Cast:
    """Elements rounded to a type; the aggregate is their mean in float32."""

    sums = True

    def __init__(self, spec: CodecSpec) -> None:
        self._type = _TYPES[spec.family]
        self.encoding = Encoding(bits=8 * self._type.itemsize, numbers=0)

    def _values(self, payload: Tensor, elements: int) -> Tensor:
        return payload[: elements * self._type.itemsize].view(self._type)

    def scale(self, whole: Tensor) -> Tensor:
        return whole.new_empty(0)

    def encode(self, vector: Tensor, _scale: Tensor, payload: Tensor, _random: object, /) -> None:
        self._values(payload, len(vector)).copy_(vector)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        out.copy_(self._values(payload, len(out)))

    def aggregate(
        self, payloads: Tensor, mean: Tensor, _payload: Tensor, _random: object, /
    ) -> None:
        mean.zero_()
        for payload in payloads:
            mean.add_(self._values(payload, len(mean)))
        mean.div_(len(payloads))


_CODERS: Mapping[str, Callable[[CodecSpec], Coder]] = {
    "none": _Cast,
    "bf16": _Cast,
    "fp16": _Cast,
    "fp8": Float8,
    "minmax": MinMax,
    "qsgd": Stochastic,
    "terngrad": Stochastic,
    "sign": SignVote,
}
"""Coders of the families that a reduce-scatter can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Elements of every shard with one codec, and their bytes in every row of the payload."""

    elements: slice
    payload: slice
    coder: Coder
    feedback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A parameter in its module's reduced gradient.

    Attributes
    ----------
    whole, padded, shard : shapes of the parameter, of a padded shard (equal on all ranks), and of
        this rank's shard without padding.
    dim : that is sharded.
    """

    name: str
    whole: tuple[int, ...]
    padded: tuple[int, ...]
    shard: tuple[int, ...]
    dim: int

    @property
    def elements(self) -> int:
        """Number of elements of a padded shard."""
        return math.prod(self.padded)

    def join(self, shards: Iterable[Tensor]) -> Tensor:
        """Return the parameter of all shards in order, of any number of ranks, padded or not."""
        return torch.cat(list(shards), self.dim).narrow(self.dim, 0, self.whole[self.dim])

    def split(self, whole: Tensor, ranks: int) -> Sequence[Tensor]:
        """Return the padded shards of all ranks."""
        shape = list(self.padded)
        shape[self.dim] *= ranks
        filled = whole.new_zeros(shape)
        filled.narrow(self.dim, 0, self.whole[self.dim]).copy_(whole)
        return filled.split(self.padded[self.dim], self.dim)

    def empty_shards(self, ranks: int) -> Sequence[Tensor]:
        """Return zeros in the shapes of shards of any number of ranks, without padding."""
        whole = torch.zeros(self.whole)
        length = -(-self.whole[self.dim] // ranks)
        starts = [min(rank * length, self.whole[self.dim]) for rank in range(ranks + 1)]
        return [whole.narrow(self.dim, a, b - a) for a, b in pairwise(starts)]


class _Group:
    """The parameters that one module shards together.

    Attributes
    ----------
    name : of the module.
    columns : its parameters in the order of the reduced gradient.
    rank, ranks : of this rank's shard, and of shards.
    """

    def __init__(self, name: str, module: FSDPModule, names: Mapping[nn.Parameter, str]) -> None:
        groups = module._get_fsdp_state()._fsdp_param_groups
        if len(groups) > 1:
            raise CompressionError(f"module {name!r} has parameters on several meshes, needs one")
        self.name, self.module = name, module
        self.inner: Any = groups[0] if groups else None
        parts = self.inner.fsdp_params if groups else []
        self.columns = [
            _Column(
                name=names[part.sharded_param],
                whole=tuple(part._orig_size),
                padded=tuple(part.padded_sharded_param_size),
                shard=tuple(part.sharded_size),
                dim=part.fsdp_placement.dim,
            )
            for part in parts
        ]
        self.parameters = {names[p.sharded_param]: p.sharded_param for p in parts}
        self.sizes = [column.elements for column in self.columns]
        mesh = self.inner.mesh_info if groups else None
        self.rank = int(mesh.shard_mesh_rank) if mesh else 0
        self.ranks = int(mesh.shard_mesh_size) if mesh else 1
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                raise CompressionError(f"parameter {name!r} is {parameter.dtype}, needs float32")

    def padding(self) -> list[tuple[int, slice]]:
        """Return the rows of the reduced gradient and their elements that are of no parameter."""
        found: list[tuple[int, slice]] = []
        end = 0
        for column in self.columns:
            end += column.elements
            length = column.padded[column.dim]
            for rank in range(self.ranks):  # only the first dimension can be uneven
                missing = min(length, max(0, (rank + 1) * length - column.whole[column.dim]))
                if missing:
                    found.append((rank, slice(end - missing * (column.elements // length), end)))
        return found

    def check(self, state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise CompressionError unless residuals, by name, have these shapes."""
        found = {name: tuple(residual.shape) for name, residual in state.items()}
        if wrong := [name for name in found if found[name] != shapes.get(name)]:
            raise CompressionError(
                f"residual of {wrong[0]!r} has shape {found[wrong[0]]}, needs "
                f"{shapes.get(wrong[0], 'a parameter of module ' + repr(self.name))}"
            )


class CompressedReduceScatter(ReduceScatter):
    """Reduce-scatter of one module's gradients by coders, with this rank's residual.

    Attributes
    ----------
    residual : what was not sent of this rank's gradients, in the layout of the reduced gradient:
        (ranks, elements of a shard). None before the first step, and without feedback.
    sent_bytes : bytes that this rank has sent.
    """

    def __init__(self, group: _Group, policy: Policy) -> None:
        self._group = group
        self._exchanger: Exchanger | None = None
        self._name, self._elements, self._padding = group.name, sum(group.sizes), group.padding()
        self.step, self.residual, self.sent_bytes = 0, None, 0.0
        self._segments: list[_Segment] = []
        begin = at = 0
        runs: list[tuple[CodecSpec, int]] = []
        for column in group.columns:
            name, size = column.name, column.elements
            spec = policy.codec_of(name, column.padded)
            if spec.family not in _CODERS:
                raise CompressionError(
                    f"codec {spec} of parameter {name!r} has no encoded shards, a fully sharded "
                    f"model needs one of {', '.join(_CODERS)}; with replicas=, any codec"
                )
            check_feedback(policy, spec, name, column.padded)
            if runs and runs[-1][0] == spec:
                runs[-1] = (spec, runs[-1][1] + size)
            else:
                runs.append((spec, size))
        for spec, size in runs:
            coder = _CODERS[spec.family](spec)
            end = at + coder.encoding.payload_bytes(size)
            self._segments.append(
                _Segment(
                    elements=slice(begin, begin + size),
                    payload=slice(at, end),
                    coder=coder,
                    feedback=spec != NONE and policy.feeds_back(spec),
                )
            )
            begin, at = begin + size, end
        self._row_bytes = at + _FLAG_BYTES

    residual: Tensor | None

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for FSDP: of each call, as the input becomes the residual."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: ARG002 - it is complete when it returns
    ) -> None:
        """Write the mean (or sum) of the ranks' inputs' own row to `output_tensor`.

        If the gradient of a rank is not finite, all outputs are NaN and residuals stay.

        Raises
        ------
        CompressionError : another type than float32, or another operator than mean and sum.
        """
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM) or input_tensor.dtype != torch.float32:
            raise CompressionError(
                f"module {self._name!r} reduces {input_tensor.dtype} by {op}: needs torch.float32 "
                "(reduce_dtype) and no gradient divide factor"
            )
        ranks = group.size()
        rows = input_tensor.view(ranks, -1)
        if rows.shape[1] != self._elements:  # not all parameters took part in this step
            dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op=dist.ReduceOp.SUM, group=group
            )
        else:
            self._average(output_tensor, rows, group)
        if (op == dist.ReduceOp.SUM) != (rows.shape[1] != self._elements):
            output_tensor.mul_(ranks) if op == dist.ReduceOp.SUM else output_tensor.div_(ranks)

    def _average(self, mean: Tensor, rows: Tensor, group: dist.ProcessGroup) -> None:
        ranks, rank = group.size(), group.rank()
        context = Context(
            rank=rank, ranks=ranks, step=self.step, seed=zlib.crc32(self._name.encode())
        )
        random = context.keys()
        if staging := staging_of(rows.device):  # FSDP made them for another stream than this one
            staging.keep(rows)
        finite = all_finite(rows.view(-1))
        if not rows.is_cpu or not finite:  # a device's flag is not waited for
            rows.masked_fill_(~finite, 0.0)
        if self.residual is not None:
            rows.add_(self.residual.to(rows.device))
        sent = rows.new_zeros((ranks, self._row_bytes), dtype=torch.uint8)
        sent[:, -1] = ~finite
        decoded = torch.empty_like(mean)
        for row, payload in zip(rows, sent, strict=True):
            for part in self._segments:
                vector = row[part.elements]
                scale = part.coder.scale(vector)
                part.coder.encode(vector, scale, payload[part.payload], random)
                if part.feedback:
                    left = decoded[part.elements]
                    part.coder.decode(payload[part.payload], left)
                    vector.sub_(left)
                else:
                    vector.zero_()
        if self._exchanger is None:  # torch passes the group, the same one in every step
            self._exchanger = Exchanger(group)
        exchange = AllToAll(sent)
        self._exchanger.run([requested(exchange)])
        received = exchange.received
        self.sent_bytes = self._exchanger.sent_bytes
        self.step += 1
        if bool(read(received[:, -1]).any()):
            mean.fill_(torch.nan)
            return
        self.residual = None
        if any(part.feedback for part in self._segments):
            self.residual = rows
            for row, elements in self._padding:
                rows[row, elements] = 0.0
        for part in self._segments:
            own, again = mean[part.elements], sent[0][part.payload]
            part.coder.aggregate(received[:, part.payload], own, again, random)
            if not part.coder.sums:
                part.coder.decode(again, own)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank keeps; residuals are copies, in the parameters' whole shapes."""
        residuals: dict[str, Tensor] = {}
        if self.residual is not None:
            parts = self.residual.split(self._group.sizes, dim=1)
            for column, rows in zip(self._group.columns, parts, strict=True):
                residuals[column.name] = column.join(row.view(column.padded) for row in rows)
        group = self._group
        return {
            "rank": group.rank,
            "ranks": group.ranks,
            "step": self.step,
            "residuals": residuals,
        }

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's state, or from those of all of another number of ranks."""
        group = self._group
        sources, model = choose_states(states, rank=group.rank, ranks=group.ranks)
        for _, source in sources:
            group.check(source["residuals"], {each.name: each.whole for each in group.columns})
        self.step, self.residual = int(model["step"]), None
        for weight, source in sources:
            if not source["residuals"]:
                continue
            if self.residual is None:
                device = next(iter(group.parameters.values())).device
                self.residual = torch.zeros((group.ranks, self._elements), device=device)
            parts = self.residual.split(group.sizes, dim=1)
            for column, rows in zip(group.columns, parts, strict=True):
                shards = column.split(source["residuals"][column.name], group.ranks)
                for row, shard in zip(rows, shards, strict=True):
                    row.add_(shard.reshape(-1).to(row.device), alpha=weight)


class _Replicas:
    """All-reduce hook of one module: averages this rank's shard among its replicas."""

    def __init__(self, group: _Group, policy: Policy, replicas: dist.ProcessGroup) -> None:
        self._group, self._replicas = group, replicas
        self.exchanger = Exchanger(replicas)
        shapes = {column.name: column.shard for column in group.columns}
        self.averager = Averager(policy, shapes, rank=replicas.rank(), ranks=replicas.size())

    def __call__(self, reduced: Tensor) -> None:
        """Replace the reduced gradient with its mean."""
        sizes, columns = self._group.sizes, self._group.columns
        if reduced.numel() != sum(sizes):  # not all parameters took part in this step
            dist.all_reduce(reduced, group=self._replicas)
            reduced.div_(self._replicas.size())
            return
        gradients = [
            (column.name, part[: math.prod(column.shard)].view(column.shard))
            for part, column in zip(reduced.split(sizes), columns, strict=True)
        ]
        try:
            self.exchanger.run(self.averager.add(gradients, last=True))
            self.exchanger.run(self.averager.finish())
        except BaseException:
            self.averager.abort()
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank keeps of its shard, and which one that is."""
        shard = {"shard": self._group.rank, "shards": self._group.ranks}
        return {**shard, **self.averager.state_dict()}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from states of this shard; or, where shards were others, from all ranks'.

        Residuals are then cut anew, and codecs start without their warm starts.
        """
        group = self._group
        if states and int(states[0]["shards"]) != group.ranks:
            states = self._cut_anew(states)
        else:
            states = [state for state in states if state["shard"] == group.rank]
        self.averager.load_state_dict(states)

    def _cut_anew(self, states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return states of this rank's shard, made from those of all old shards."""
        group, found = self._group, {(int(s["rank"]), int(s["shard"])): s for s in states}
        replicas, shards = int(states[0]["ranks"]), int(states[0]["shards"])
        cut: list[dict[str, Any]] = []
        for replica in range(replicas):
            if any((replica, shard) not in found for shard in range(shards)):
                raise CompressionError(
                    f"states are of {len(found)} of {replicas} x {shards} ranks, this model has "
                    f"{group.ranks} shards: needs the list of all"
                )
            kept = [found[replica, shard]["parameters"] for shard in range(shards)]
            parameters: dict[str, Any] = {}
            for column in group.columns:
                parts = [each.get(column.name, {}).get("residual") for each in kept]
                if all(part is None for part in parts):
                    continue
                empty = column.empty_shards(shards)  # too small for a codec, where there is none
                pairs = zip(parts, empty, strict=True)
                parts = [zeros if part is None else part.cpu() for part, zeros in pairs]
                for part, zeros in zip(parts, empty, strict=True):
                    group.check({column.name: part}, {column.name: tuple(zeros.shape)})
                whole = column.join(parts)
                own = column.split(whole, group.ranks)[group.rank]
                own = own.narrow(column.dim, 0, column.shard[column.dim]).contiguous()
                parameters[column.name] = {"residual": own, "states": {}}
            codecs = {name: str(spec) for name, spec in self.averager.codecs.items()}
            cut.append(
                {
                    "rank": replica,
                    "ranks": replicas,
                    "step": found[replica, 0]["step"],
                    "codecs": codecs,
                    "parameters": parameters,
                }
            )
        return cut


@offered_by("headrace.compression")
class FsdpHook:
    """Hooks of a model's modules; see `headrace.compression.fsdp_hook`."""

    def __init__(
        self, model: nn.Module, policy: Policy | CodecSpec | str, replicas: dist.ProcessGroup | None
    ) -> None:
        rules = policy if isinstance(policy, Policy) else Policy(codec=policy)
        names = {parameter: name for name, parameter in model.named_parameters()}
        found = [
            _Group(name, module, names)
            for name, module in model.named_modules()
            if isinstance(module, FSDPModule)
        ]
        groups = [group for group in found if group.columns]
        if not groups:
            raise CompressionError(
                f"model is a {type(model).__name__} without sharded modules, needs fully_shard"
            )
        if replicas is not None and any(group.inner._is_hsdp for group in groups):
            raise CompressionError(
                "the model's mesh has replicas, which torch averages itself: needs fully_shard "
                "over the ranks of one host, and the replicas' process group here"
            )
        everyone = replicas or groups[0].inner.mesh_info.shard_process_group
        shapes = [(each.name, each.padded) for group in groups for each in group.columns]
        for group in groups:
            one_device(group.parameters, everyone)
        require_same(
            {"policies": rules, "uses of replicas": replicas is not None, "parameters": shapes},
            "All need the same.",
            group=everyone,
            error=CompressionError,
        )
        self._parts = {
            group.name: CompressedReduceScatter(group, rules)
            if replicas is None
            else _Replicas(group, rules, replicas)
            for group in groups
        }
        codec = self._codec = codec_spec(rules.codec)
        reason = reason_without_savings(rules, [codec], dict(shapes), everyone.size())
        if reason is not None and everyone.rank() == 0:
            warnings.warn(reason, stacklevel=3)
        for group in groups:
            part = self._parts[group.name]
            if isinstance(part, _Replicas):
                group.module.set_all_reduce_hook(part)
            else:
                group.module.set_custom_reduce_scatter(part)

    def __repr__(self) -> str:
        return f"<FsdpHook: {self._codec} for {len(self._parts)} sharded modules>"

    @property
    def sent_bytes(self) -> float:
        """Bytes of gradients that this rank has sent."""
        return sum(
            part.exchanger.sent_bytes if isinstance(part, _Replicas) else part.sent_bytes
            for part in self._parts.values()
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank keeps, by module; to be saved by every rank.

        Fully sharded, this copies the residual: as much memory as an unsharded gradient.
        """
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's state, or from the list of all ranks' states.

        The list may be of another number of ranks, shards or replicas: the residuals' mean over
        the ranks is kept, as by `Averager.load_state_dict`. Where shards are others, warm starts
        are not.

        Raises
        ------
        CompressionError : states are missing, or of other modules or parameters, or of a hook with
            replicas where this has none (or the other way round).
        """
        given = [states] if isinstance(states, Mapping) else list(states)
        for state in given:
            if set(state) != set(self._parts):
                raise CompressionError(
                    f"state has modules {list(state)}, needs {list(self._parts)}"
                )
        for name, part in self._parts.items():
            own = [state[name] for state in given]
            if any(("shard" in state) != isinstance(part, _Replicas) for state in own):
                raise CompressionError(
                    "state is of a hook with replicas= or this one is, needs both or neither"
                )
            part.load_state_dict(own)
