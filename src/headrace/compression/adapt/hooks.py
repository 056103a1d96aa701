"""The hook of a policy, a schedule, or the choice among levels."""

from typing import Any

import torch

from headrace.compression.adapt.auto import Auto
from headrace.compression.adapt.automatic import AutomaticHook
from headrace.compression.adapt.following import require_optimizer
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.adapt.scheduled import ScheduledHook
from headrace.compression.averaging import check_start
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.compression.run.hook import Hook, check_exchange, hook_of
from headrace.compression.run.hooked import HookedModel


def checked_policy(
    policy: Policy | CodecSpec | str | Auto | LevelSchedule,
    *,
    when: str,
    optimizer: torch.optim.Optimizer | None,
    scaler: Any,
    start_after: int,
) -> Policy | Auto | LevelSchedule:
    """Return the policy of a hook, if it and the hook's options can be any model's.

    A trainer has the hook made in its first step: what no model could have is refused before.

    Raises
    ------
    CompressionError : no such codec, or another argument that `ddp_hook` refuses.
    """
    check_exchange(when, scaler)
    check_start(start_after)
    if policy == "auto":
        policy = Auto()
    if isinstance(policy, CodecSpec | str):
        policy = Policy(codec=policy)
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, Auto) and not hasattr(policy, "rules"):
        raise CompressionError(
            f"policy is {policy!r}, needs a codec such as 'powersgd:4', a Policy, 'auto', or a "
            "schedule such as Accordion"
        )
    if isinstance(policy, Auto) and when != "after":
        raise CompressionError(
            f'when is {when!r}, but "auto" times exchanges after the backward pass: leave it out, '
            "or give a codec"
        )
    require_optimizer(policy.schedule if isinstance(policy, Auto) else policy, optimizer)
    return policy


def make_hook(
    model: HookedModel,
    policy: Policy | CodecSpec | str | Auto | LevelSchedule,
    *,
    when: str,
    **options: Any,
) -> Hook:
    """Register a hook, and return it; see `headrace.compression.ddp_hook`."""
    policy = checked_policy(policy, when=when, **options)
    if isinstance(policy, Policy):
        return hook_of(model, policy, when=when, **options)
    if isinstance(policy, Auto):
        return AutomaticHook(model, policy, **options)
    return ScheduledHook(model, policy, when=when, **options)
