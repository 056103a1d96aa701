"""Callback for the Trainer of transformers, which passes no communication hook on."""

from typing import Any

from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from headrace.compression.adapt.following import FollowingHook
from headrace.compression.adapt.hooks import checked_policy, make_hook
from headrace.compression.run.figures import ScalarWriter
from headrace.compression.run.hook import Hook
from headrace.compression.run.hooked import hooked_model, uncompiled
from headrace.facades import offered_by


@offered_by("headrace.compression")
class CompressionCallback(TrainerCallback):
    """Registers a hook on the model that a Trainer has wrapped.

    See `headrace.compression.trainer_callback`.

    Attributes
    ----------
    hook : None before training begins, and where the Trainer runs as one process.
    """

    def __init__(
        self, trainer: Trainer, policy: Any, *, writer: ScalarWriter | None, **options: Any
    ) -> None:
        self._trainer, self._options = trainer, options
        self._policy = checked_policy(policy, **options)
        self._writer = writer
        self.hook: Hook | None = None
        self._hooked: object = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Register the hook, unless an earlier call of `train` has: torch takes one a model."""
        model = uncompiled(self._trainer.model_wrapped)
        if args.world_size == 1 and not isinstance(model, DistributedDataParallel):
            return
        if model is not self._hooked:
            if self.hook is not None:  # of a model that the Trainer has dropped
                self.hook.close()
            # of fp16, where accelerate scales the loss
            scaler = self._trainer.accelerator.scaler
            options: dict[str, Any] = {**self._options, "scaler": scaler}
            self.hook = make_hook(hooked_model(model), self._policy, **options)
            self._hooked = model

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End an epoch of the schedule, if the hook follows one."""
        if isinstance(self.hook, FollowingHook):
            self.hook.epoch()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Write the hook's figures."""
        if self.hook is not None and self._writer is not None:
            self.hook.write_figures(self._writer, state.global_step)
