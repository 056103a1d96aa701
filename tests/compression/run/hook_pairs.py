"""Checks of a pair of state and hook, which a trainer registers."""

import copy
import gc
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import (
    Policy,
    ddp_hook,
    hook_pair,
)
from tests.compression.run.hook_training import (
    BUCKET_MB,
    Net,
    backward,
    descend,
    parallel,
    refuses,
    weights,
)


def a_pair_of_state_and_hook_is_the_same_hook() -> None:
    """Trainers that own the loop register a state and a hook, before there is a wrapped model.

    A module that has its pair could not be copied or pickled after the first step.
    """
    policy = Policy(codec="minmax:4", except_for=["first.*"])
    ours = parallel(find_unused_parameters=True)  # a pair cannot know whether its model does
    hook = ddp_hook(ours, policy)
    network = Net()
    state, on_bucket = hook_pair(network, policy, start_after=0)
    refuses(lambda: state.hook, "needs one before")
    model = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(state, on_bucket)
    for step in range(3):
        for each in (ours, model):
            backward(each, step, dist.get_rank())
            descend(each)
        assert torch.equal(weights(ours), weights(model)), step
    assert state.hook.codecs == hook.codecs
    assert state.hook.figures()["sent_bytes"] == hook.figures()["sent_bytes"]
    network.pair = state  # type: ignore[assignment] # as of Lightning's modules
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        refuses(lambda copied=copied: copied.pair.hook, "needs one before")
    state.hook.close()
    hook.close()
    other, on_bucket = hook_pair(nn.Linear(9, 9), policy)
    model = parallel()
    model.register_comm_hook(other, on_bucket)
    refuses(lambda: backward(model, 0, dist.get_rank()), "given to hook_pair has not")


def a_pair_goes_on_where_the_module_is_wrapped_again() -> None:
    """All gradients were zero: torch made other nodes, by which no parameter counted as used."""
    ours, network = parallel(find_unused_parameters=True), Net()
    hook = ddp_hook(ours, "minmax:4")
    state, on_bucket = hook_pair(network, "minmax:4")

    def wrapped() -> DistributedDataParallel:
        gc.collect()  # the model that was wrapped before, and what it holds of torch
        model = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB)
        model.register_comm_hook(state, on_bucket)
        return model

    model = wrapped()
    for step in range(4):
        if step == 2:
            del model
            model = wrapped()
        backward(ours, step, dist.get_rank())
        backward(model, step, dist.get_rank())
        descend(ours)
        descend(model)
        assert torch.equal(weights(ours), weights(network)), step
    del model
    network.first.requires_grad_(False)
    backward(wrapped(), 4, dist.get_rank())
    assert network.last.weight.grad is not None
    assert network.last.weight.grad.any()
    state.hook.close()
    hook.close()


def a_pair_continues_from_a_state_in_its_first_step() -> None:
    """A pair had no hook to load a state before its first step, which sent no residual."""
    ours = parallel(find_unused_parameters=True)
    hook = ddp_hook(ours, "minmax:2")
    for step in range(2):
        backward(ours, step, dist.get_rank())
        descend(ours)
    network = copy.deepcopy(ours.module)
    state, on_bucket = hook_pair(network, "minmax:2")
    state.load_state_dict(copy.deepcopy(hook.state_dict()))
    model = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(state, on_bucket)
    for each in (ours, model):
        backward(each, 2, dist.get_rank())
        descend(each)
    assert torch.equal(weights(ours), weights(model))
    assert state.hook.step == hook.step == 3
    state.load_state_dict(hook.state_dict())
    state.hook.close()
    hook.close()
