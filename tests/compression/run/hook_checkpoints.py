"""Checks of the hook that continues from the state of another."""

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import (
    Auto,
    CodecSpec,
    Policy,
    ddp_hook,
)
from headrace.compression.run.hook import Hook
from tests.compression.run.hook_training import Net, backward, parallel, refuses


def loaded(
    policy: Any, state: dict[str, Any], **options: Any
) -> tuple[DistributedDataParallel, Hook, list[str]]:
    """A hook of a policy that goes on from a state, and the warnings of that."""
    model = parallel()
    hook = ddp_hook(model, policy, **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        hook.load_state_dict(state)
    return model, hook, [str(warning.message) for warning in warned]


def a_checkpoint_of_another_policy_keeps_the_hooks_codecs() -> None:
    """The saved codecs replaced those of the script's new policy, without a word or a check.

    Residuals go on: updates and residuals add up to the gradients, with the new codecs.
    """
    rank, name = dist.get_rank(), "first.weight"
    gentle = Auto(levels=["none", "minmax:4"])
    states: dict[str, dict[str, Any]] = {}
    for saved in ("powersgd:2", "dgc:5%", "minmax:2", "auto"):
        model = parallel()
        hook = ddp_hook(model, saved)
        for step in range(2):
            backward(model, step, rank)
        states[saved] = copy.deepcopy(hook.state_dict())
        hook.close()
    for saved, policy, codec in (
        ("powersgd:2", "topk:5%", "topk:5%"),
        ("powersgd:2", "powersgd:4", "powersgd:4"),
        ("powersgd:2", "none", "none"),
        ("dgc:5%", "minmax:4", "minmax:4"),
        ("minmax:2", gentle, "none"),
        ("auto", gentle, "none"),
        ("auto", "none", "none"),
        ("auto", Policy(codec="minmax:4", except_for=["middle.*"]), "minmax:4"),
    ):
        model, hook, texts = loaded(policy, states[saved])
        assert len(texts) == (rank == 0), (saved, policy, texts)
        assert all(f"is of {states[saved]['policy']}, this hook of" in text for text in texts)
        assert str(hook.codecs[name]) == codec
        total = hook.averager.residual(name)
        entry = states[saved]["parameters"].get(name)
        assert torch.equal(total, torch.zeros(60, 40) if entry is None else entry["residual"])
        alone = copy.deepcopy(model.module)
        backward(alone, 2, rank)
        backward(model, 2, rank)
        total += alone.first.weight.grad
        left = hook.averager.residual(name)
        dist.all_reduce(total)
        dist.all_reduce(left)
        arrived = left + dist.get_world_size() * model.module.first.weight.grad
        torch.testing.assert_close(arrived, total, rtol=0, atol=1e-6)
        assert loaded(policy, hook.state_dict())[2] == [], "the state is of the new policy"
        hook.close()


def a_checkpoint_of_the_policy_or_an_earlier_version_has_its_codecs() -> None:
    """Codecs of `set_codec` go on; an earlier version's state has no text of its policy."""
    rank = dist.get_rank()
    model = parallel()
    hook = ddp_hook(model, "powersgd:2")
    hook.set_codec("first.weight", "qsgd:2")
    backward(model, 0, rank)
    state = hook.state_dict()
    hook.close()
    former = {key: entry for key, entry in state.items() if key != "policy"}
    text = f"2 states are of rank {rank}, needs 1"
    refuses(lambda: ddp_hook(parallel(), "powersgd:2").load_state_dict([state, state]), text)
    for saved in (state, former):
        _, hook, texts = loaded("powersgd:2", saved)
        assert texts == []
        assert hook.codecs["first.weight"] == CodecSpec.parse("qsgd:2")
        assert str(hook.codecs["middle.weight"]) == "powersgd:2"
        hook.close()
    for policy, text in (
        (Policy(codec="powersgd:2", feedback=True), "codec qsgd:2 of parameter 'first.weight'"),
        (Policy(codec="powersgd:2", except_for=["first.*"]), "leaves alone"),
    ):
        _, hook, texts = loaded(policy, former)
        assert len(texts) == (rank == 0)
        assert all(text in reason for reason in texts)
        assert str(hook.codecs["first.weight"]) in ("powersgd:2", "none")
        hook.close()
    # "none" for all is no codec that the hook of a model in float64 refuses when it is made
    model = parallel()
    hook = ddp_hook(model, "none")
    hook.set_codec(None, "topk:5%")
    state = hook.state_dict()
    hook.close()
    wide = ddp_hook(DistributedDataParallel(Net().double()), "none")
    refuses(lambda: wide.load_state_dict(state), "'first.weight' is torch.float64, codec topk:5%")
    assert str(wide.codecs["first.weight"]) == "none"
    wide.close()
