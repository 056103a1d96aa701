"""Fully sharded gradients: one exchange of encoded shards in place of FSDP's reduce-scatter.

A rank needs the mean of its own shard alone. So a codec's all-to-all of encoded shards is the whole
exchange: nothing is encoded again, and a rank sends (n-1)/n of the encoded gradient. Error feedback
keeps what a rank's own encoding left of its whole gradient.
"""

# torch does not export FSDP's parts from its stubs
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from headrace.compression.averaging import choose_states
from headrace.compression.bounds import check_feedback
from headrace.compression.codecs.quantizers import Float8, MinMax, SignVote, Stochastic
from headrace.compression.codecs.requests import AllToAll, Context, requested
from headrace.compression.codecs.sharded import Coder
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.finite import all_finite
from headrace.compression.policy import Policy
from headrace.compression.run.exchanger import Exchanger
from headrace.compression.run.shards import ShardedGroup
from headrace.compression.traffic import Encoding
from headrace.staging import download, staging_of

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


class CompressedReduceScatter(ReduceScatter):
    """Reduce-scatter of one module's gradients by coders, with this rank's residual.

    Attributes
    ----------
    residual : what was not sent of this rank's gradients, in the layout of the reduced gradient:
        (ranks, elements of a shard). None before the first step, and without feedback.
    sent_bytes : bytes that this rank has sent.
    """

    def __init__(self, group: ShardedGroup, policy: Policy) -> None:
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
        if bool(download(received[:, -1]).any()):
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
            "step": self.step,
            "residuals": residuals,
        }

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's state, or from those of all of another number of ranks."""
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
                self.residual = torch.zeros((group.ranks, self._elements), device=device)
            parts = self.residual.split(group.sizes, dim=1)
            for column, rows in zip(group.columns, parts, strict=True):
                shards = column.split(source["residuals"][column.name], group.ranks)
                for row, shard in zip(rows, shards, strict=True):
                    row.add_(shard.reshape(-1).to(row.device), alpha=weight)
