"""Gradient compression: fewer bytes between ranks, where that makes training faster."""

from typing import TYPE_CHECKING, Any, Unpack, overload

from headrace.compression.adapt.accordion import Accordion
from headrace.compression.adapt.auto import Auto
from headrace.compression.adapt.controls import AdaQS, HandSet
from headrace.compression.errors import CompressionError, ExchangeError, PayloadError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.facades import deferred_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from transformers import Trainer

    from headrace.compression.adapt.accordion import CriticalRegimes
    from headrace.compression.adapt.automatic import AutomaticHook
    from headrace.compression.adapt.binding import ScheduleBinding
    from headrace.compression.adapt.metrics import LevelMetrics
    from headrace.compression.adapt.pair import HookState
    from headrace.compression.adapt.schedule import (
        Levels,
        LevelSchedule,
        ScheduleState,
        ScheduleUnit,
        SeenMark,
    )
    from headrace.compression.adapt.scheduled import ScheduledHook
    from headrace.compression.adapt.trainer import CompressionCallback
    from headrace.compression.families import Family
    from headrace.compression.plan.advice import Advice, AdviceRow
    from headrace.compression.plan.network import FormulaNetwork, NetworkTimes
    from headrace.compression.plan.plan import CompressionPlan, RecordedNetwork
    from headrace.compression.profile import (
        CodecTiming,
        CompressionProfile,
        GradientBucket,
        ModelTensor,
    )
    from headrace.compression.run.exchanger import ExchangeStatistics
    from headrace.compression.run.figures import ScalarWriter
    from headrace.compression.run.fsdp import FsdpHook
    from headrace.compression.run.hook import Hook, HookOptions
    from headrace.compression.run.hooked import HookedModel
    from headrace.compression.run.metrics import HookMetrics

__all__ = [
    "Accordion",
    "AdaQS",
    "Advice",
    "AdviceRow",
    "Auto",
    "AutomaticHook",
    "CodecSpec",
    "CodecTiming",
    "CompressionCallback",
    "CompressionError",
    "CompressionPlan",
    "CompressionProfile",
    "CriticalRegimes",
    "ExchangeError",
    "ExchangeStatistics",
    "Family",
    "FormulaNetwork",
    "FsdpHook",
    "GradientBucket",
    "HandSet",
    "Hook",
    "HookMetrics",
    "HookOptions",
    "HookState",
    "HookedModel",
    "LevelMetrics",
    "LevelSchedule",
    "Levels",
    "ModelTensor",
    "NetworkTimes",
    "PayloadError",
    "Policy",
    "RecordedNetwork",
    "ScalarWriter",
    "ScheduleBinding",
    "ScheduleState",
    "ScheduleUnit",
    "ScheduledHook",
    "SeenMark",
    "ddp_hook",
    "fsdp_hook",
    "hook_pair",
    "trainer_callback",
]

_MODULES = {
    "Advice": "plan.advice",
    "AdviceRow": "plan.advice",
    "AutomaticHook": "adapt.automatic",
    "CodecTiming": "profile",
    "CompressionCallback": "adapt.trainer",
    "CompressionPlan": "plan.plan",
    "CompressionProfile": "profile",
    "CriticalRegimes": "adapt.accordion",
    "ExchangeStatistics": "run.exchanger",
    "Family": "families",
    "FormulaNetwork": "plan.network",
    "FsdpHook": "run.fsdp",
    "GradientBucket": "profile",
    "Hook": "run.hook",
    "HookMetrics": "run.metrics",
    "HookOptions": "run.hook",
    "HookState": "adapt.pair",
    "HookedModel": "run.hooked",
    "LevelMetrics": "adapt.metrics",
    "LevelSchedule": "adapt.schedule",
    "Levels": "adapt.schedule",
    "ModelTensor": "profile",
    "NetworkTimes": "plan.network",
    "RecordedNetwork": "plan.plan",
    "ScalarWriter": "run.figures",
    "ScheduleBinding": "adapt.binding",
    "ScheduleState": "adapt.schedule",
    "ScheduleUnit": "adapt.schedule",
    "ScheduledHook": "adapt.scheduled",
    "SeenMark": "adapt.schedule",
}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES)


@overload
def ddp_hook(
    model: "DistributedDataParallel",
    policy: Policy | CodecSpec | str | Auto,
    **options: "Unpack[HookOptions]",
) -> "Hook": ...


@overload
def ddp_hook(
    model: "DistributedDataParallel",
    policy: "LevelSchedule",
    **options: "Unpack[HookOptions]",
) -> "ScheduledHook": ...


def ddp_hook(
    model: "DistributedDataParallel",
    policy: "Policy | CodecSpec | str | Auto | LevelSchedule",
    *,
    when: str = "after",
    optimizer: "Optimizer | None" = None,
    scaler: Any = None,
    start_after: int = 0,
) -> "Hook":
    """Compress a model's gradients from the next backward pass on; called on all its ranks.

    Parameters
    ----------
    model : with parameters of float32, bfloat16 or float16 on the CPU or one GPU.
    policy : codec of each parameter; a codec's text such as ``powersgd:4`` stands for a policy. A
        schedule such as `Accordion` changes codecs as training goes on: the hook (a
        `ScheduledHook`) is told of the end of each epoch by its `epoch()`. ``"auto"`` or an `Auto`
        chooses among levels by the times of steps, and follows the network: an `AutomaticHook`,
        which exchanges after the backward pass, or as DDP does where no compression is fastest.
    when : "after": exchange when the backward pass has ended, in as few exchanges as possible;
        "during": exchange each bucket as soon as it is ready.
    optimizer : whose learning rates a schedule follows; else not needed.
    scaler : `torch.amp.GradScaler`, whose changes of scale residuals follow.
    start_after : number of first steps that are averaged uncompressed, as DDP does.

    Raises
    ------
    CompressionError : no such codec; the model cannot be compressed, or has a hook; ranks differ.
    """
    from headrace.compression.adapt.hooks import make_hook
    from headrace.compression.run.hooked import hooked_model

    return make_hook(
        hooked_model(model),
        policy,
        when=when,
        optimizer=optimizer,
        scaler=scaler,
        start_after=start_after,
    )


def hook_pair(
    module: "Module",
    policy: "Policy | CodecSpec | str | Auto | LevelSchedule",
    *,
    when: str = "after",
    optimizer: "Optimizer | None" = None,
    scaler: Any = None,
    start_after: int = 0,
    group: "ProcessGroup | None" = None,
) -> "tuple[HookState, Callable[..., Any]]":
    """Return a state and a hook for `DistributedDataParallel.register_comm_hook`.

    For trainers that wrap the model and register a hook by themselves, such as Lightning's
    ``DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook)``. The hook is made, and a model that it
    cannot compress is refused, in the first backward pass; then it is ``state.hook``.

    Parameters
    ----------
    module : that is going to be wrapped; it names the parameters.
    group : of the wrapped model; None: all ranks.
    policy, when, optimizer, scaler, start_after : see `ddp_hook`.

    Raises
    ------
    CompressionError : no such codec, or an option that no hook has.
    """
    from headrace.compression.adapt.pair import HookState, on_bucket

    state = HookState(
        module,
        policy,
        group=group,
        when=when,
        optimizer=optimizer,
        scaler=scaler,
        start_after=start_after,
    )
    return state, on_bucket


def trainer_callback(
    trainer: "Trainer",
    policy: "Policy | CodecSpec | str | Auto | LevelSchedule",
    *,
    when: str = "after",
    start_after: int = 0,
    writer: "ScalarWriter | None" = None,
) -> "CompressionCallback":
    """Return a callback that compresses the gradients of a Trainer of transformers.

    Given to ``trainer.add_callback``; the hook is registered when training begins. A Trainer of
    one process is left as it is.

    Parameters
    ----------
    policy, when, start_after : see `ddp_hook`; schedules that follow learning rates are not for it.
    writer : `torch.utils.tensorboard.SummaryWriter`, to which the hook's figures are written
        whenever the Trainer logs.

    Raises
    ------
    CompressionError : no such codec, or an option that no hook has.
    """
    from headrace.compression.adapt.trainer import CompressionCallback

    return CompressionCallback(
        trainer,
        policy,
        writer=writer,
        when=when,
        optimizer=None,
        scaler=None,
        start_after=start_after,
    )


def fsdp_hook(
    model: "Module",
    policy: Policy | CodecSpec | str,
    *,
    replicas: "ProcessGroup | None" = None,
    scaler: Any = None,
    start_after: int = 0,
) -> "FsdpHook":
    """Compress the gradients of a model that `fully_shard` shards; called on all its ranks.

    Parameters
    ----------
    model : after all calls of `fully_shard`, on the CPU or one GPU; parameters, and the types in
        which their gradients are reduced, are float32, bfloat16 or float16.
    policy : codec of each parameter; a codec's text such as ``minmax:4`` stands for a policy.
    replicas : process group of the ranks that hold the same shard, if hosts shard inside and
        replicate across slow links: shards are then averaged in it, by any codec, and exchanged
        uncompressed within the host. None: the reduce-scatter is compressed, by a codec whose
        encoded shards can be exchanged (casts, quantisers, sign).
    scaler : `torch.amp.GradScaler`, whose changes of scale residuals follow.
    start_after : number of first steps that are averaged uncompressed.

    Raises
    ------
    CompressionError : no such codec, or not for sharded models; the model cannot be compressed;
        ranks differ.
    """
    from headrace.compression.run.fsdp import FsdpHook

    return FsdpHook(model, policy, replicas, scaler, start_after)
