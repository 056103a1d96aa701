"""Communication hook of DistributedDataParallel: averages gradients by a policy's codecs.

The work is done when a step's last bucket is ready: in the call of that bucket on the thread that
runs the backward pass, so that its errors are raised there. With ``when="during"`` a thread encodes
and exchanges the other buckets before, on a process group of its own; what they decode to is
still written in that call, when it is known that the whole step went well.
"""

# torch does not export GradBucket from its stubs, and offers no list of a model's hooks.
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from headrace.compression.averaging import Averager, Gradients, is_dense
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec, codec_spec
from headrace.compression.policy import Policy, parameter_named
from headrace.compression.run.exchanger import Exchanger, ExchangeStatistics
from headrace.compression.run.groups import same_ranks
from headrace.compression.run.same import require_same
from headrace.compression.savings import reason_without_savings
from headrace.facades import offered_by
from headrace.job.switch import mark_step
from headrace.staging import Arrival, staging_of

DEVICES = ("cpu", "cuda")
"""Types of devices whose gradients can be compressed."""

GradientObserver = Callable[[str, Tensor], None]
"""Called with the name and the mean gradient of every parameter, after each finite step."""


def register_hook(
    model: DistributedDataParallel,
    policy: Policy | CodecSpec | str,
    *,
    when: str = "after",
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
) -> "Hook":
    """Average a model's gradients by a policy's codecs from the next backward pass on.

    All ranks of the model's process group have to call it.

    Parameters
    ----------
    model : with float32 parameters on the CPU or one GPU.
    policy : codec of each parameter; a codec's text such as ``powersgd:4`` stands for a policy.
    when : "after": exchange when the backward pass has ended, in as few exchanges as possible;
        "during": exchange each bucket as soon as it is ready.
    optimizer : kept as `Hook.optimizer`, for what follows its learning rate.
    scaler : `torch.amp.GradScaler`, whose changes of scale residuals follow.

    Raises
    ------
    CompressionError : no such codec; the model cannot be compressed, or has a hook; ranks differ.
    """
    hook = Hook(model, policy, when=when, optimizer=optimizer, scaler=scaler)
    hook.warn_without_savings([codec_spec(hook.averager.policy.codec)])
    hook.register(model)
    return hook


@offered_by("headrace.compression")
class Hook:
    """Hook of one model; see `register_hook`.

    Attributes
    ----------
    averager : codecs, residuals and states by parameter name.
    observers : called after each finite step, on the thread of the backward pass.
    statistics : sums over all steps; `last` are the last step's.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        policy: Policy | CodecSpec | str,
        *,
        when: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
    ) -> None:
        parameters = _checked_parameters(model)
        if when not in ("after", "during"):
            raise CompressionError(f'when is {when!r}, needs "after" or "during"')
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise CompressionError(f"scaler is {scaler!r}, needs a torch.amp.GradScaler")
        group = model.process_group
        assert group is not None
        self.optimizer = optimizer
        self.observers: list[GradientObserver] = []
        self.statistics, self.last = ExchangeStatistics(), ExchangeStatistics()
        self.averager = Averager(
            policy,
            {name: tuple(p.shape) for name, p in parameters.items()},
            rank=group.rank(),
            ranks=group.size(),
        )
        for name, spec in self.averager.codecs.items():
            _check_type(name, parameters[name], spec)
        self._parameters: dict[str, Tensor] = {**parameters}
        self._staging = staging_of(one_device(parameters, group))
        self._marks: list[Arrival] = []  # on a device: of this step's buckets
        # frozen ones, too: DDP goes on averaging those that were frozen after it was made
        self._names: dict[Tensor, str] = {p: name for name, p in model.module.named_parameters()}
        self._scaler, self._scale = scaler, None if scaler is None else float(scaler.get_scale())
        require_same(
            {
                "policies": self.averager.policy,
                "values of when": when,
                "parameters' codecs": {n: str(c) for n, c in self.averager.codecs.items()},
            },
            "All need the same.",
            group=group,
            error=CompressionError,
        )
        self._own = when == "during" and group.size() > 1
        self._group: dist.ProcessGroup = same_ranks(group) if self._own else group
        self._exchanger = Exchanger(self._group)
        self._worker = ThreadPoolExecutor(1, "headrace-compression") if self._own else None
        self._buckets: list[tuple[torch.futures.Future[Tensor], Tensor, Gradients]] = []
        self._begun: list[Future[None]] = []
        self._open = True
        self._warned = False

    def register(self, model: DistributedDataParallel) -> None:
        """Have a model call the hook; last, as it cannot be undone where the hook is refused."""
        model.register_comm_hook(self, _on_bucket)

    def __repr__(self) -> str:
        counts = Counter(str(codec) for codec in self.codecs.values())
        codecs = ", ".join(f"{codec} for {count}" for codec, count in counts.most_common())
        return f"<{type(self).__name__}: parameters by codec: {codecs}; step {self.step}>"

    @property
    def step(self) -> int:
        """Number of steps averaged; equal on all ranks."""
        return self.averager.step

    @property
    def codecs(self) -> Mapping[str, CodecSpec]:
        """Codec of each parameter."""
        return self.averager.codecs

    def set_codec(self, name: str | None, codec: CodecSpec | str) -> None:
        """Use another codec from the next step on; see `Averager.set_codec`."""
        self._set_codecs([(name, codec)])
        self.warn_without_savings([codec_spec(codec)], name)

    def warn_without_savings(self, codecs: Sequence[CodecSpec], name: str | None = None) -> None:
        """Warn once, at the first rank, if none of the codecs saves bytes on any parameter.

        Parameters
        ----------
        name : of the parameter that is asked about; None: all together.
        """
        averager, shapes = self.averager, self.averager.shapes
        if self._warned or averager.rank:
            return
        if name is not None:
            name = parameter_named(name, shapes)
            shapes = {name: shapes[name]}
        reason = reason_without_savings(averager.policy, codecs, shapes, averager.ranks)
        if reason is not None:
            self._warned = True
            warnings.warn(reason, stacklevel=4)

    def _set_codecs(self, codecs: Iterable[tuple[str | None, CodecSpec | str]]) -> None:
        """Use other codecs, and announce it to headrace's adaptation of plans.

        Adaptation would otherwise take the other times of steps for a changed network.
        """
        before = dict(self.codecs)
        specs = [(name, codec_spec(codec)) for name, codec in codecs]
        for name, spec in specs:
            self._check_codec(spec, name)
        for name, spec in specs:
            self.averager.set_codec(name, spec)
        if before != self.codecs:
            mark_step(changed=True)

    def _check_codec(self, codec: CodecSpec, name: str | None = None) -> None:
        """Raise CompressionError unless a parameter, or all (None), can have a codec."""
        self.averager.check_codec(codec)
        names = list(self._parameters)
        for parameter in names if name is None else [parameter_named(name, names)]:
            tensor = self._parameters[parameter]
            spec = self.averager.policy.codec_of(parameter, tuple(tensor.shape), codec)
            _check_type(parameter, tensor, spec)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by parameter name; to be saved by every rank.

        Tensors are not copied. Other bucket sizes or another bucket order make no difference.
        """
        return {**self.averager.state_dict(), "scale": self._scale}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's state, or from the list of all ranks' states.

        The list may be of another number of ranks: the residuals' mean over the ranks is kept. With
        a scaler, residuals follow the difference of its scale to the saved one.

        Raises
        ------
        CompressionError : states are missing, or of other parameters.
        """
        for state in [states] if isinstance(states, Mapping) else states:
            for parameter, name in self._names.items():
                if name in state.get("codecs", ()):
                    self._admit(name, parameter)
        self.averager.load_state_dict(states)
        first = states if isinstance(states, Mapping) else states[0]
        if first.get("scale") is not None:
            self._scale = float(first["scale"])

    def close(self) -> None:
        """End the thread and the process group of this hook; gradients are then sent as they are.

        torch cannot take a hook back: the model goes on calling it.
        """
        if not self._open:
            return
        self._open = False
        if self._worker is not None:
            self._worker.shutdown()
        if self._own:
            dist.destroy_process_group(self._group)

    def __reduce__(self) -> NoReturn:
        raise CompressionError(
            "a model with a compression hook cannot be pickled or copied, as its process group "
            "cannot: save model.module and the hook's state_dict(), and call ddp_hook again"
        )

    # ---- called by torch -------------------------------------------------------------------

    def on_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take a bucket, and average the step's gradients at the last one."""
        buffer = bucket.buffer()
        if not self._open:
            raise CompressionError("the hook was closed: wrap the module in a new model")
        if bucket.index() == 0:
            self._begin()
        gradients = self._gradients(bucket)
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=self._staging.devices if self._staging is not None else None
        )
        self._buckets.append((future, buffer, gradients))
        try:
            mark = None if self._staging is None else self._staging.mark()
            if mark is not None:
                self._marks.append(mark)
            if bucket.is_last():
                self._finish(gradients)
            elif self._worker is not None:
                self._begun.append(self._worker.submit(self._exchange, gradients, mark))
        except BaseException as error:
            self._give_up(error)
            raise
        return future

    def _gradients(self, bucket: dist.GradBucket) -> Gradients:
        """Return a bucket's gradients by name, in their parameters' memory format.

        torch lays them out as their parameters are, where these are dense; but the views of them
        that `GradBucket.gradients` returns have the strides of contiguous ones.
        """
        for parameter in bucket.parameters():
            self._admit(self._names[parameter], parameter)
        return [
            (
                self._names[parameter],
                memory.as_strided(parameter.shape, parameter.stride())
                if is_dense(parameter)
                else memory,
            )
            for parameter, memory in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]

    def _admit(self, name: str, parameter: Tensor) -> None:
        """Take a parameter that DDP averages although it was frozen when the hook was made."""
        if name not in self._parameters:
            self.averager.admit(name, parameter.shape)
            _check_type(name, parameter, self.averager.codecs[name])
            self._parameters[name] = parameter

    def _begin(self) -> None:
        if self._buckets:  # a backward pass that ended half-way
            self._give_up(None)
        if self._scaler is not None:
            scale = float(self._scaler.get_scale())
            if self._scale and scale != self._scale:
                self.averager.rescale(scale / self._scale)
            self._scale = scale
        self._exchanger.sent_bytes = self._exchanger.compute_s = self._exchanger.exchange_s = 0.0

    def _exchange(self, gradients: Gradients, mark: Arrival | None) -> None:
        """Encode and exchange a bucket that is not the last one; on the worker's thread.

        On a device on a stream beside that of the backward pass, after the bucket's `mark`.
        """
        if self._staging is None or mark is None:
            self._exchanger.run(self.averager.add(gradients, last=False))
            return
        with self._staging.beside(mark):
            try:
                self._exchanger.run(self.averager.add(gradients, last=False))
            finally:
                self._marks.append(self._staging.mark())

    def _follow_marks(self) -> None:
        """Order later work on a device after that of this step's buckets, on whatever stream."""
        marks, self._marks = self._marks, []
        for mark in marks:
            assert self._staging is not None
            self._staging.follow(mark)

    def _finish(self, gradients: Gradients) -> None:
        """Do what is left of a step."""
        if self._worker is None:
            gradients = [pair for _, _, bucket in self._buckets for pair in bucket]
        for begun in self._begun:
            begun.result()
        self._follow_marks()
        exchanger = self._exchanger
        exchanger.run(self.averager.add(gradients, last=True))
        encode_s = exchanger.compute_s
        exchanger.run(self.averager.finish())
        self._add_statistics(
            ExchangeStatistics(
                steps=1,
                sent_bytes=exchanger.sent_bytes,
                encode_s=encode_s,
                exchange_s=exchanger.exchange_s,
                decode_s=exchanger.compute_s - encode_s,
            )
        )
        buckets, self._buckets, self._begun = self._buckets, [], []
        for future, buffer, means in buckets:
            if self.averager.finite:
                for observer in self.observers:
                    for name, mean in means:
                        observer(name, mean)
            future.set_result(buffer)

    def _add_statistics(self, last: ExchangeStatistics) -> None:
        """Count a step that has ended."""
        sums = self.statistics
        self.last, self.statistics = (
            last,
            ExchangeStatistics(
                **{
                    key: getattr(sums, key) + getattr(last, key)
                    for key in ExchangeStatistics.__slots__
                }
            ),
        )

    def _give_up(self, error: BaseException | None) -> None:
        """Undo a step: residuals are as before it, or the error says which are not."""
        for begun in self._begun:
            begun.exception()
        self._follow_marks()
        self.averager.abort()
        self._buckets, self._begun = [], []
        if error is not None and self.averager.torn:
            error.add_note(
                f"residuals of {len(self.averager.torn)} parameters are those after this step, "
                f"{self.averager.torn[0]!r} among them; the others are those before it"
            )


def _on_bucket(hook: Hook, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    return hook.on_bucket(bucket)


def _checked_parameters(model: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Return a model's parameters that have gradients, by name, if it can be compressed."""
    if not isinstance(model, DistributedDataParallel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompressionError(
            f"model is a {type(model).__name__}, needs a DistributedDataParallel; for a fully "
            "sharded model see headrace.compression.fsdp_hook"
        )
    if model._comm_hooks:
        raise CompressionError("the model has a communication hook already, needs one without")
    if model.mixed_precision is not None:
        raise CompressionError("the model has mixed_precision, needs torch.autocast in its place")
    module = model.module
    averaged = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    }
    for name, part in module.named_modules():
        if (
            isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag)
            and part.sparse
            and (f"{name}.weight" if name else "weight") in averaged
        ):
            raise CompressionError(f"module {name!r} has sparse gradients, needs sparse=False")
    return averaged


def one_device(parameters: Mapping[str, Tensor], group: dist.ProcessGroup) -> torch.device:
    """Return the device of all parameters, if their gradients can be exchanged in a group.

    Raises
    ------
    CompressionError : parameters are on several devices or of an unknown type, or the group has no
        backend for payloads in host memory.
    """
    device = torch.device("cpu")
    for number, (name, parameter) in enumerate(parameters.items()):
        device = device if number else parameter.device
        if parameter.device != device or device.type not in DEVICES:
            raise CompressionError(
                f"parameter {name!r} is on {parameter.device}, needs the CPU or a CUDA device, the "
                "same for all parameters"
            )
    if device.type != "cpu" and torch.device("cpu") not in group._device_types:
        raise CompressionError(
            f"parameters are on {device} and the process group has no backend for the CPU, by "
            'which their payloads go: needs init_process_group("headrace"), or one for both such '
            'as "cpu:gloo,cuda:nccl"'
        )
    return device


def _check_type(name: str, parameter: Tensor, spec: CodecSpec) -> None:
    if spec.family != "none" and parameter.dtype != torch.float32:
        raise CompressionError(
            f"parameter {name!r} is {parameter.dtype}, codec {spec} needs torch.float32: name it "
            "in except_for of a Policy, or keep parameters in float32 and compute in 16 bits under "
            "torch.autocast"
        )
