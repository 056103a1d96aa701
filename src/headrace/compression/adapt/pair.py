"""A communication hook for trainers that register it by themselves, as (state, hook).

Such a pair is made before the model is wrapped. It takes effect with the first bucket of the first
backward pass, when the parameters are those that DistributedDataParallel averages.
"""

# torch does not export GradBucket and the default group from its stubs
# pyright: reportPrivateImportUsage=false

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headrace.compression.adapt.auto import Auto
from headrace.compression.adapt.hooks import checked_policy, make_hook
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.names import parameter_names
from headrace.compression.policy import Policy
from headrace.compression.run.hook import Hook
from headrace.compression.run.hooked import PYTHON_REDUCER, HookedModel, averaged_parameters
from headrace.facades import offered_by


@offered_by("headrace.compression")
class HookState:
    """State of a hook that is registered before it can be made; see `hook_pair`."""

    def __init__(
        self,
        module: nn.Module,
        policy: Policy | CodecSpec | str | Auto | LevelSchedule,
        *,
        group: dist.ProcessGroup | None,
        **options: Any,
    ) -> None:
        self._module, self._group = module, group
        self._policy = checked_policy(policy, **options)
        self._options = options
        self._hook: Hook | None = None
        self._saved: Any = None

    @property
    def hook(self) -> Hook:
        """The hook, from the first backward pass on.

        Raises
        ------
        CompressionError : there was none yet.
        """
        if self._hook is None:
            raise CompressionError("the hook is made in the first backward pass, needs one before")
        return self._hook

    def __getstate__(self) -> dict[str, Any]:
        # a copy, as of a module that has its pair, makes a hook of its own
        return {**self.__dict__, "_hook": None}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from saved states of hooks, once there is a hook; see `Hook.load_state_dict`."""
        if self._hook is None:
            self._saved = states
        else:
            self._hook.load_state_dict(states)

    def on_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take a bucket: see `Hook`."""
        if self._hook is None:
            self._hook = self._make(bucket)
            if self._saved is not None:
                self._hook.load_state_dict(self._saved)
                self._saved = None
        elif bucket.index() == 0:
            self._hook.follow_anew()
        return self._hook.on_bucket(bucket)

    def _make(self, bucket: dist.GradBucket) -> Hook:
        group = self._group or dist.group.WORLD
        assert group is not None
        ignored = getattr(self._module, "_ddp_params_and_buffers_to_ignore", ())
        model = HookedModel(
            parameters=averaged_parameters(self._module, ignored),
            names=parameter_names(self._module),
            group=group,
            finds_unused=True,  # the trainer has wrapped the module, in what way is not known
            register=lambda _hook, _on_bucket: None,  # the trainer has
        )
        if any(parameter not in model.names for parameter in bucket.parameters()):
            raise CompressionError(
                f"the model has parameters that the {type(self._module).__name__} given to "
                "hook_pair has not, needs the module that is wrapped"
            )
        return make_hook(model, self._policy, **self._options)


def on_bucket(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket's gradients; the hook of a pair."""
    if not isinstance(bucket, dist.GradBucket):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompressionError(PYTHON_REDUCER)
    return state.on_bucket(bucket)
