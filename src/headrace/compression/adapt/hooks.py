"""The hook of a policy, a schedule, or the choice among levels."""

from typing import Any

from headrace.compression.adapt.auto import Auto
from headrace.compression.adapt.automatic import AutomaticHook
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.adapt.scheduled import ScheduledHook
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.compression.run.hook import Hook, hook_of
from headrace.compression.run.hooked import HookedModel


def make_hook(
    model: HookedModel,
    policy: Policy | CodecSpec | str | Auto | LevelSchedule,
    *,
    when: str,
    **options: Any,
) -> Hook:
    """Register a hook, and return it; see `headrace.compression.ddp_hook`."""
    if policy == "auto":
        policy = Auto()
    if isinstance(policy, Auto):
        return AutomaticHook(model, policy, **options)
    if isinstance(policy, Policy | CodecSpec | str):
        return hook_of(model, policy, when=when, **options)
    if not hasattr(policy, "rules"):
        raise CompressionError(
            f"policy is {policy!r}, needs a codec such as 'powersgd:4', a Policy, 'auto', or a "
            "schedule such as Accordion"
        )
    return ScheduledHook(model, policy, when=when, **options)
