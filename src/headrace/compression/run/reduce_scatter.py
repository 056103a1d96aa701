"""Fully sharded gradients: one exchange of encoded shards in place of FSDP's reduce-scatter.

A rank needs the mean of its own shard alone. So a codec's all-to-all of encoded shards is the whole
exchange: nothing is encoded again, and a rank sends (n-1)/n of the encoded gradient. Error feedback
keeps what a rank's own encoding left of its whole gradient. Codecs compute in float32, whatever the
type in which FSDP reduces gradients; what is rounded off the mean is in its owner's residual.
"""

# torch does not export FSDP's parts from its stubs
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from headrace.compression.averaging import check_start
from headrace.compression.bounds import check_feedback
from headrace.compression.codecs.quantizers import Float8, MinMax, SignVote, Stochastic
from headrace.compression.codecs.requests import AllToAll, Context, requested
from headrace.compression.codecs.sharded import Coder
from headrace.compression.codecs.wire import WIRE_TYPES
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.finite import all_finite
from headrace.compression.policy import Policy
from headrace.compression.run.exchanger import Exchanger, ExchangeStatistics
from headrace.compression.run.gradient_scale import GradientScale
from headrace.compression.run.hooked import GRADIENT_TYPES
from headrace.compression.run.shards import ShardedGroup
from headrace.compression.saved_states import choose_states
from headrace.compression.traffic import PayloadLayout
from headrace.staging import download, staging_of

_FLAG_BYTES = 8  # at the end of each row: whether the sender's gradient is finite; keeps alignment


class _Cast:
    """Elements rounded to a type; the aggregate is their mean in float32."""

    sums = True

    def __init__(self, spec: CodecSpec, reduced: torch.dtype) -> None:
        self._type = WIRE_TYPES.get(spec.family, reduced)
        self.layout = PayloadLayout(bits=8 * self._type.itemsize, numbers=0)

    def _values(self, payload: Tensor, elements: int) -> Tensor:
        return payload[: elements * self._type.itemsize].view(self._type)

    def scale(self, vector: Tensor) -> Tensor:
        return vector.new_empty(0)

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


_CODERS: Mapping[str, Callable[[CodecSpec, torch.dtype], Coder]] = {
    "none": _Cast,
    "bf16": _Cast,
    "fp16": _Cast,
    "fp8": lambda spec, _: Float8(spec),
    "minmax": lambda spec, _: MinMax(spec),
    "qsgd": lambda spec, _: Stochastic(spec),
    "terngrad": lambda spec, _: Stochastic(spec),
    "sign": lambda spec, _: SignVote(spec),
}
"""Coders of the families that a reduce-scatter can use, for gradients reduced in a type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Elements of every shard with one codec, and their bytes in every row of the payload."""

    elements: slice
    payload: slice
    coder: Coder
    feedback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Segments of the gradients of one type, and the bytes of a row of their payload."""

    segments: Sequence[_Segment]
    row_bytes: int

    @property
    def feeds_back(self) -> bool:
        return any(segment.feedback for segment in self.segments)


class CompressedReduceScatter(ReduceScatter):
    """Reduce-scatter of one module's gradients by coders, with this rank's residual.

    Attributes
    ----------
    residual : what was not sent of this rank's gradients, in the layout of the reduced gradient:
        (ranks, elements of a shard). None before the first step, and without feedback.
    statistics : sums over steps.
    """

    def __init__(
        self, group: ShardedGroup, policy: Policy, scale: GradientScale, start_after: int = 0
    ) -> None:
        check_start(start_after)
        self._scale = scale
        self._group, self._policy, self._start_after = group, policy, start_after
        self._residual_type = WIRE_TYPES[policy.residuals]
        self._exchanger: Exchanger | None = None
        self._name, self._elements, self._padding = group.name, sum(group.sizes), group.padding()
        self.step, self.residual, self.statistics = 0, None, ExchangeStatistics()
        self._layouts: dict[torch.dtype, _Layout] = {}
        self._runs: list[tuple[CodecSpec, int]] = []
        for column in group.columns:
            name, size = column.name, column.elements
            spec = policy.codec_of(name, column.padded)
            if spec.family not in _CODERS:
                raise CompressionError(
                    f"codec {spec} of parameter {name!r} has no encoded shards, a fully sharded "
                    f"model needs one of {', '.join(_CODERS)}; with replicas=, any codec"
                )
            check_feedback(policy, spec, name, column.padded)
            if self._runs and self._runs[-1][0] == spec:
                self._runs[-1] = (spec, self._runs[-1][1] + size)
            else:
                self._runs.append((spec, size))

    residual: Tensor | None

    def _layout(self, reduced: torch.dtype) -> _Layout:
        """Return the layout of gradients that FSDP reduces in a type."""
        if reduced not in self._layouts:
            segments: list[_Segment] = []
            begin = at = 0
            for spec, size in self._runs:
                coder = _CODERS[spec.family](spec, reduced)
                end = at + coder.layout.payload_bytes(size)
                segments.append(
                    _Segment(
                        elements=slice(begin, begin + size),
                        payload=slice(at, end),
                        coder=coder,
                        feedback=spec != NONE and self._policy.feeds_back(spec),
                    )
                )
                begin, at = begin + size, end
            self._layouts[reduced] = _Layout(segments=segments, row_bytes=at + _FLAG_BYTES)
        return self._layouts[reduced]

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
        """Write the mean of the ranks' inputs' own row, or a multiple, to `output_tensor`.

        If the gradient of a rank is not finite, all outputs are NaN and residuals stay.

        Raises
        ------
        CompressionError : a type that codecs do not encode, or another operator than a sum.
        """
        ranks, began_s = group.size(), time.perf_counter()
        factor = _factor(op, ranks)
        if not factor or input_tensor.dtype not in GRADIENT_TYPES:
            raise CompressionError(
                f"module {self._name!r} reduces {input_tensor.dtype} by {op}: needs a reduce_dtype "
                f"of {', '.join(map(str, GRADIENT_TYPES))}, and a sum or mean"
            )
        rows = input_tensor.view(ranks, -1)
        plain_bytes = (ranks - 1) / ranks * input_tensor.nbytes
        are_all = self._group.are_all(rows.shape[1])
        if are_all and self.step >= self._start_after:
            self._average(output_tensor, rows, group, factor)
            return
        if are_all:
            self.step += 1
        # too early, or not all parameters took part in this step
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op=dist.ReduceOp.SUM, group=group)
        if factor != ranks:
            output_tensor.div_(ranks / factor)
        self._count(plain_bytes, plain_bytes, time.perf_counter() - began_s)

    def _count(self, plain_bytes: float, sent_bytes: float, exchange_s: float) -> None:
        """Add a step to the statistics."""
        sums = self.statistics
        sums.steps += 1
        sums.plain_bytes += plain_bytes
        sums.sent_bytes += sent_bytes
        sums.exchange_s += exchange_s
        sums.exposed_s += exchange_s

    def _average(
        self, mean: Tensor, gradients: Tensor, group: dist.ProcessGroup, factor: float
    ) -> None:
        """Write the mean of the ranks' rows for this rank, times a factor."""
        ranks, rank = group.size(), group.rank()
        layout = self._layout(gradients.dtype)
        began_s = time.perf_counter()
        context = Context(
            rank=rank, ranks=ranks, step=self.step, seed=zlib.crc32(self._name.encode())
        )
        random = context.keys()
        if staging := staging_of(gradients.device):  # FSDP made them for another stream
            staging.keep(gradients)
        rows = gradients.to(torch.float32)
        self._rescale(self._scale.follow())
        if self.residual is not None:
            rows.add_(self.residual.to(rows.device))
        finite = all_finite(rows.view(-1))  # with the residual, as their sum may overflow
        if not rows.is_cpu or not finite:  # a device's flag is not waited for
            rows.masked_fill_(~finite, 0.0)
        sent = rows.new_zeros((ranks, layout.row_bytes), dtype=torch.uint8)
        sent[:, -1] = ~finite
        own_mean = torch.empty_like(mean, dtype=torch.float32)  # until then scratch
        for row, payload in zip(rows, sent, strict=True):
            for part in layout.segments:
                vector = row[part.elements]
                scale = part.coder.scale(vector)
                part.coder.encode(vector, scale, payload[part.payload], random)
                if part.feedback:
                    left = own_mean[part.elements]
                    part.coder.decode(payload[part.payload], left)
                    vector.sub_(left)
                else:
                    vector.zero_()
        if self._exchanger is None:  # torch passes the group, the same one in every step
            self._exchanger = Exchanger(group)
        exchange, before = AllToAll(sent), (self._exchanger.sent_bytes, self._exchanger.exchange_s)
        encoded_s = time.perf_counter()
        self._exchanger.run([requested(exchange)])
        decoding_s = time.perf_counter()
        received = exchange.received
        self.step += 1
        if bool(download(received[:, -1]).any()):
            mean.fill_(torch.nan)
            if self.residual is not None:  # an overflow in an earlier step may have left others
                self.residual.nan_to_num_(nan=0, posinf=0, neginf=0)
        else:
            for part in layout.segments:
                own, again = own_mean[part.elements], sent[0][part.payload]
                part.coder.aggregate(received[:, part.payload], own, again, random)
                if not part.coder.sums:
                    part.coder.decode(again, own)
            self._deliver(mean, own_mean, rows, layout, rank, factor)
        self.statistics.encode_s += encoded_s - began_s
        self.statistics.decode_s += time.perf_counter() - decoding_s
        self._count(
            (ranks - 1) / ranks * gradients.nbytes,
            self._exchanger.sent_bytes - before[0],
            self._exchanger.exchange_s - before[1],
        )

    def _rescale(self, factor: float) -> None:
        if self.residual is not None and factor != 1:
            self.residual.mul_(factor)

    def _deliver(
        self,
        mean: Tensor,
        exact: Tensor,
        rows: Tensor,
        layout: _Layout,
        rank: int,
        factor: float,
    ) -> None:
        """Write the mean, times a factor, in its type, and keep the residual."""
        if factor == 1:
            mean.copy_(exact)
        else:
            torch.mul(exact, factor, out=mean)
        self.residual = None
        if not layout.feeds_back:
            return
        if mean.dtype is not torch.float32:
            rounding = exact.mul_(factor).sub_(mean).nan_to_num_(nan=0, posinf=0, neginf=0)
            for part in layout.segments:
                if part.feedback:
                    rows[rank, part.elements].add_(
                        rounding[part.elements], alpha=len(rows) / factor
                    )
        for row, elements in self._padding:
            rows[row, elements] = 0.0
        self.residual = rows.to(self._residual_type)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; residuals are copies, in the parameters' whole shapes."""
        residuals: dict[str, Tensor] = {}
        if self.residual is not None:
            parts = self.residual.split(self._group.sizes, dim=1)
            for column, rows in zip(self._group.columns, parts, strict=True):
                residuals[column.name] = column.join(row.view(column.padded) for row in rows)
        group = self._group
        return {
            "rank": group.rank,
            "ranks": group.ranks,
            "holders": group.replicas,
            "step": self.step,
            "residuals": residuals,
            "scale": self._scale.factor,
        }

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> str:
        """Continue from this rank's state, or from those of all of another number of ranks.

        Returns "": a state has residuals alone, with which any policy's codecs can go on.
        """
        group = self._group
        sources, model = choose_states(states, rank=group.rank, ranks=group.ranks)
        for _, source in sources:
            group.check(
                source["residuals"],
                {parameter.name: parameter.shape for parameter in group.columns},
            )
        self.step, self.residual = int(model["step"]), None
        for weight, source in sources:
            if not source["residuals"]:
                continue
            if self.residual is None:
                device = next(iter(group.parameters.values())).device
                self.residual = torch.zeros(
                    (group.ranks, self._elements), dtype=self._residual_type, device=device
                )
            parts = self.residual.split(group.sizes, dim=1)
            for column, rows in zip(group.columns, parts, strict=True):
                residual = source["residuals"].get(column.name)
                if residual is None:  # it was frozen
                    continue
                shards = column.split(residual, group.ranks)
                for row, shard in zip(rows, shards, strict=True):
                    row.add_(shard.reshape(-1).to(row.device), alpha=weight)
        self._rescale(self._scale.load(model.get("scale")))
        return ""


def _factor(op: Any, ranks: int) -> float:
    """Return the factor of the ranks' mean by which an operator reduces; 0: not a mean or sum."""
    if op == dist.ReduceOp.AVG:
        return 1.0
    if op == dist.ReduceOp.SUM:
        return float(ranks)
    return ranks * float(op.factor) if op == dist.ReduceOp.PREMUL_SUM else 0.0
