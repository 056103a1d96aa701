"""Communication hook of DistributedDataParallel: averages gradients by a policy's codecs.

The work is done when a step's last bucket is ready: in the call of that bucket on the thread that
runs the backward pass, so that its errors are raised there. With ``when="during"`` a thread encodes
and exchanges the other buckets before, on a process group of its own; what they decode to is
still written in that call, when it is known that the whole step went well.

Where all gradients of a step are summed as they are, each bucket's allreduce begins when it is
ready, as DDP's own do.
"""

# torch does not export GradBucket from its stubs
# pyright: reportPrivateImportUsage=false

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.compression.averaging import Averager, Gradients
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec, codec_spec
from headrace.compression.memory_layout import is_dense
from headrace.compression.names import parameter_named
from headrace.compression.policy import Policy, reason_against_patterns
from headrace.compression.run.exchanger import Exchanger, ExchangeStatistics
from headrace.compression.run.figures import HookFigures, figures_of
from headrace.compression.run.gradient_scale import GradientScale, check_scaler
from headrace.compression.run.groups import end_group, same_ranks
from headrace.compression.run.hooked import (
    GRADIENT_TYPES,
    HookedModel,
    one_device,
)
from headrace.compression.run.same import require_same
from headrace.compression.run.use import GradientUse
from headrace.compression.savings import reason_without_savings
from headrace.compression.traffic import allreduce_bytes
from headrace.facades import offered_by
from headrace.job.switch import mark_step
from headrace.staging import staging_of

GradientObserver = Callable[[str, Tensor], None]
"""Called with the name and the mean gradient of every parameter, after each finite step."""


@offered_by("headrace.compression")
class HookOptions(TypedDict, total=False):
    """Options of `headrace.compression.ddp_hook`, which has their defaults."""

    when: str
    optimizer: torch.optim.Optimizer | None
    scaler: Any
    start_after: int


def check_exchange(when: str, scaler: Any) -> None:
    """Raise a `CompressionError` unless these can be a hook's ``when`` and ``scaler``."""
    if when not in ("after", "during"):
        raise CompressionError(f'when is {when!r}, needs "after" or "during"')
    check_scaler(scaler)


def hook_of(model: HookedModel, policy: Policy | CodecSpec | str, **options: Any) -> "Hook":
    """Register the hook of a policy, and return it; see `headrace.compression.ddp_hook`."""
    hook = Hook(model, policy, **options)
    hook.warn_when_made([codec_spec(hook.averager.policy.codec)])
    hook.register()
    return hook


@offered_by("headrace.compression")
class Hook(HookFigures):
    """Hook of one model; see `headrace.compression.ddp_hook`.

    Attributes
    ----------
    averager : codecs, residuals and states by parameter name.
    observers : called with each mean of a finite step, one call at a time: on the thread of the
        backward pass, or on those that end the exchanges where nothing is compressed.
    statistics : sums over all steps; `last` are the last step's.
    """

    def __init__(
        self,
        model: HookedModel,
        policy: Policy | CodecSpec | str,
        *,
        when: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        start_after: int = 0,
    ) -> None:
        check_exchange(when, scaler)
        parameters, group = model.parameters, model.group
        self.optimizer = optimizer
        self.observers: list[GradientObserver] = []
        self.statistics, self.last = ExchangeStatistics(), ExchangeStatistics()
        self.averager = Averager(
            policy,
            {name: tuple(p.shape) for name, p in parameters.items()},
            rank=group.rank(),
            ranks=group.size(),
            start_after=start_after,
        )
        for name, spec in self.averager.codecs.items():
            _check_type(name, parameters[name], spec)
        self._model = model
        self._rank = group.rank()
        self._parameters: dict[str, Tensor] = {**parameters}
        self._types = {name: p.dtype for name, p in parameters.items()}
        self._staging = staging_of(one_device(parameters, group))
        self._marks: list[torch.cuda.Event] = []  # on a device: of this step's buckets
        self._scale = GradientScale(scaler)
        # what DDP drops of parameters that no rank used must not be taken from their residuals
        self._use = GradientUse(parameters) if model.finds_unused else None
        self._require_same(when)
        self._own = when == "during" and group.size() > 1
        self._group: dist.ProcessGroup = same_ranks(group) if self._own else group
        self.averager.rank = self._group.rank()  # torch sorts the ranks of a new group
        self._exchanger = Exchanger(self._group)
        self._worker = ThreadPoolExecutor(1, "headrace-compression") if self._own else None
        self._buckets: list[tuple[torch.futures.Future[Tensor], Tensor, Gradients]] = []
        self._begun: list[Future[None]] = []
        self._direct = False  # whether the present step's buckets are summed as they are
        self._ready_s = 0.0  # of the last bucket that was
        self._plain_bytes = 0.0  # that the present step sends without compression
        self._open = True
        self._warned = False
        self._observing = threading.Lock()  # several buckets may end at once

    def _require_same(self, when: str) -> None:
        """Raise CompressionError unless all ranks have given the same."""
        averager = self.averager
        require_same(
            {
                "policies": averager.policy,
                "types of residuals": averager.policy.residuals,
                "values of when": when,
                "values of start_after": averager.start_after,
                "parameters' codecs": {n: str(c) for n, c in averager.codecs.items()},
                "types of parameters": self._types,
                "values of find_unused_parameters": self._use is not None,
            },
            "All need the same.",
            group=self._model.group,
            error=CompressionError,
        )

    def register(self) -> None:
        """Have the model call the hook; last, as it cannot be undone where the hook is refused."""
        self._model.register(self, _on_bucket)

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
        self.warn_without_savings([codec_spec(codec)], name, stacklevel=3)

    def warn_when_made(self, codecs: Sequence[CodecSpec]) -> None:
        """Warn, at the first rank, of patterns without a parameter, and if no codec saves bytes."""
        reason = reason_against_patterns(self.averager.policy, self._model.names.values())
        if reason is not None and not self.averager.rank:
            warnings.warn(reason, stacklevel=5)
        self.warn_without_savings(codecs, stacklevel=6)

    def warn_without_savings(
        self, codecs: Sequence[CodecSpec], name: str | None = None, *, stacklevel: int
    ) -> None:
        """Warn once, at the first rank, if none of the codecs saves bytes on any parameter.

        Parameters
        ----------
        name : of the parameter that is asked about; None: all together.
        stacklevel : of the program's call.
        """
        averager, shapes = self.averager, self.averager.shapes
        if self._warned or averager.rank:
            return
        if name is not None:
            name = parameter_named(name, shapes)
            shapes = {name: shapes[name]}
        reason = reason_without_savings(
            averager.policy,
            codecs,
            shapes,
            averager.ranks,
            {name: self._types[name].itemsize for name in shapes},
        )
        if reason is not None:
            self._warned = True
            warnings.warn(reason, stacklevel=stacklevel)

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

    def figures(self) -> dict[str, float]:
        """Return the sums over all steps by name, with ``saved_bytes``."""
        return figures_of(self.statistics)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by parameter name; to be saved by every rank.

        Tensors are not copied. Other bucket sizes or another bucket order make no difference.
        """
        return {**self.averager.state_dict(), "holders": 1, "scale": self._scale.factor}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's state, or from the list of all ranks' states.

        The list may be of another number of ranks: the residuals' mean over the ranks is kept.
        Residuals follow the difference of the scaler's scale to the saved one; without a scaler it
        is 1. Codecs are the saved ones if the policy is; else this hook goes on with its own, and
        the first rank warns.

        Raises
        ------
        CompressionError : states are missing, or of other parameters or types.
        """
        saved = [states] if isinstance(states, Mapping) else states
        first = saved[0] if saved else {}
        self._admit_saved(saved)
        reason = self._reason_against(first)
        if not reason:
            for name, text in first.get("codecs", {}).items():
                if name in self._parameters:
                    _check_type(name, self._parameters[name], codec_spec(text))
        self.averager.load_state_dict(states, codecs=not reason)
        if reason and not self.averager.rank:
            warnings.warn(reason, stacklevel=2)
        self.averager.rescale(self._scale.load(first.get("scale")))

    def _reason_against(self, state: Mapping[str, Any]) -> str:
        """Return why a saved state's codecs are not used; "": they are."""
        return self.averager.reason_against(state)

    def follow_anew(self) -> None:
        """Follow the gradients of the model, in case that a trainer has wrapped it again."""
        if self._use is not None:
            self._use.follow_anew()

    def close(self) -> None:
        """End the thread and the process group of this hook, unless all groups were destroyed.

        torch cannot take a hook back: later backward passes of the model are errors.
        """
        if not self._open:
            return
        self._open = False
        if self._use is not None:
            self._use.close()
        if self._worker is not None:
            self._worker.shutdown()
        if self._own:
            end_group(self._group)

    def __reduce__(self) -> NoReturn:
        raise CompressionError(
            "a model with a compression hook cannot be pickled or copied, as its process group "
            "cannot: save or copy model.module, save the hook's state_dict(), and call ddp_hook "
            "again"
        )

    # ---- called by torch -------------------------------------------------------------------

    def on_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take a bucket, and average the step's gradients at the last one."""
        buffer = bucket.buffer()
        if not self._open:
            raise CompressionError("the hook was closed: wrap the module in a new model")
        if bucket.index() == 0:
            self._begin()
        self._plain_bytes += allreduce_bytes(buffer.nbytes, self.averager.ranks)
        if self._direct:
            return self._sum(bucket)
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
            self._admit(self._model.names[parameter], parameter)
        return [
            (
                self._model.names[parameter],
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
            self._parameters[name], self._types[name] = parameter, parameter.dtype
            if self._use is not None:
                self._use.add(name, parameter)

    def _admit_saved(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take the parameters of saved states that are frozen now."""
        for state in states:
            for parameter, name in self._model.names.items():
                if name in state.get("codecs", ()):
                    self._admit(name, parameter)

    def _begin(self) -> None:
        if self._buckets:  # a backward pass that ended half-way
            self._give_up(None)
        self._between_steps()
        self.averager.rescale(self._scale.follow())
        self._exchanger.sent_bytes = self._exchanger.compute_s = self._exchanger.exchange_s = 0.0
        self._plain_bytes = 0.0
        averager = self.averager
        if averager.start_after and averager.step == averager.start_after:
            mark_step(changed=True)
        self._direct = averager.is_plain(self._types)
        if self._direct:
            averager.step += 1

    def _between_steps(self) -> None:
        """Do what follows the last step before the next one begins."""

    def _end(self) -> None:
        """Note that the last exchange of a step has begun."""
        if self._use is not None:
            self._use.clear()

    def _sum(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to average a bucket as it is."""
        self._ready_s = time.perf_counter()
        # here, as buckets may end in another order on another rank: parameters are admitted
        means = self._gradients(bucket) if self.observers else []
        work: Any = dist.all_reduce(
            bucket.buffer().div_(self.averager.ranks), group=self._group, async_op=True
        )
        if bucket.is_last():
            self._end()
        return work.get_future().then(partial(self._summed, bucket, means))

    def _summed(
        self, bucket: dist.GradBucket, means: Gradients, future: torch.futures.Future[Any]
    ) -> Tensor:
        """Take a bucket's mean."""
        # buckets end in order, or nearly: the last one's end counts
        exposed_s = time.perf_counter() - self._ready_s
        try:
            mean: Tensor = future.value()[0]
        except RuntimeError as error:
            raise self._exchanger.reports.error(error) from error
        if means and bool(torch.isfinite(mean).all()):
            with self._observing:
                self._observe_means(means)
        if bucket.is_last():
            self._add_statistics(
                ExchangeStatistics(
                    steps=1,
                    sent_bytes=self._plain_bytes,
                    exchange_s=exposed_s,
                    plain_bytes=self._plain_bytes,
                    exposed_s=exposed_s,
                )
            )
        return mean

    def _exchange(self, gradients: Gradients, mark: torch.cuda.Event | None) -> None:
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
        began_s = time.perf_counter()
        for begun in self._begun:
            begun.result()
        exchanger = self._exchanger
        waited_s, hidden_s = time.perf_counter() - began_s, exchanger.exchange_s
        self._follow_marks()
        unused = None if self._use is None else self._use.unused()
        exchanger.run(self.averager.add(gradients, last=True, unused=unused))
        encode_s = exchanger.compute_s
        exchanger.run(self.averager.finish())
        self._add_statistics(
            ExchangeStatistics(
                steps=1,
                sent_bytes=exchanger.sent_bytes,
                encode_s=encode_s,
                exchange_s=exchanger.exchange_s,
                decode_s=exchanger.compute_s - encode_s,
                plain_bytes=self._plain_bytes,
                exposed_s=waited_s + exchanger.exchange_s - hidden_s,
            )
        )
        self._end()
        buckets, self._buckets, self._begun = self._buckets, [], []
        # what the averager does not test, as nothing is kept of it, observers do not get either
        observed = self.averager.finite and bool(self.observers)
        if observed:
            observed = all(bool(torch.isfinite(buffer).all()) for _, buffer, _ in buckets)
        for future, buffer, means in buckets:
            if observed:
                self._observe_means(means)
            future.set_result(buffer)

    def _observe_means(self, means: Gradients) -> None:
        for name, mean in means:
            for observer in self.observers:
                observer(name, mean)

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


def _check_type(name: str, parameter: Tensor, spec: CodecSpec) -> None:
    if spec.family != "none" and parameter.dtype not in GRADIENT_TYPES:
        raise CompressionError(
            f"parameter {name!r} is {parameter.dtype}, codec {spec} needs one of "
            f"{', '.join(map(str, GRADIENT_TYPES))}: name it in except_for of a Policy"
        )
