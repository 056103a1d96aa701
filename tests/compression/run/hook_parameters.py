"""Checks of the hook with parameters that are frozen, unused, excluded, or in another layout."""

import copy
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import (
    Auto,
    HandSet,
    Policy,
    ddp_hook,
    hook_pair,
)
from tests.compression.run.hook_training import Net, backward, data, parallel, refuses
from tests.compression.states import same


def unused_parameters_keep_their_residual() -> None:
    """The sent part of an unused parameter's residual was lost, as DDP drops the mean.

    Updates that arrive and residuals add up to the gradients, whoever uses the parameter.
    """
    rank, name = dist.get_rank(), "branch.weight"
    for codec, later, pair, options, zeros in (
        ("powersgd:1", "powersgd:1", False, {}, False),
        ("topk:5%", "none", True, {}, False),
        ("minmax:2", "bf16", False, {"gradient_as_bucket_view": True}, True),
    ):
        model = parallel(find_unused_parameters=True, **options)
        state, on_bucket = hook_pair(model.module, codec, when="during")
        if pair:
            model.register_comm_hook(state, on_bucket)
        hook = None if pair else ddp_hook(model, codec)
        weight = model.module.branch.weight
        sums = torch.zeros((2, *weight.shape))  # of gradients, and of updates
        for step, users in enumerate(((0, 1), (0,), (), (), (1,), (0, 1))):
            model.zero_grad(set_to_none=not zeros)
            alone = copy.deepcopy(model.module)
            alone(data(step, rank), branch=rank in users).square().mean().backward()
            if alone.branch.weight.grad is not None:
                sums[0] += alone.branch.weight.grad
            model(data(step, rank), branch=rank in users).square().mean().backward()
            hook = hook or state.hook
            if step == 2:
                hook.set_codec(name, later)
            if users:
                sums[1] += weight.grad
            else:
                assert not weight.grad.any() if zeros else weight.grad is None
        model.zero_grad()
        model(data(0, rank)).mul(0).sum().backward()  # it is used: its residual goes on
        assert weight.grad.any() == (later == codec)
        sums[1] += weight.grad
        assert hook is not None
        left = hook.averager.residual(name)
        dist.all_reduce(left)
        dist.all_reduce(sums)  # the mean times the ranks
        tolerance = 1e-2 if later == "bf16" else 1e-5
        torch.testing.assert_close(left + sums[1], sums[0], rtol=0, atol=tolerance * 0.1)
        hook.close()


def parameters_that_were_frozen_at_first_keep_their_residual() -> None:
    """A GAN's discriminator, frozen in its generator's steps, lost its residual in every one."""
    name = "branch.weight"
    for pair in (False, True):
        model = parallel(find_unused_parameters=True)
        branch = model.module.branch.requires_grad_(False)
        state, on_bucket = hook_pair(model.module, "powersgd:1")
        if pair:
            model.register_comm_hook(state, on_bucket)
        hook = None if pair else ddp_hook(model, "powersgd:1")
        before = torch.zeros(branch.weight.shape)
        for step in range(6):
            branch.requires_grad_(step % 2 == 1)
            for parameter in model.parameters():
                parameter.grad = parameter.grad if step % 2 == 0 else None
            model(data(step, dist.get_rank())).square().mean().backward()
            hook = hook or state.hook
            left = hook.averager.residual(name)
            assert torch.equal(left, before) == (step % 2 == 0), (pair, step)
            before = left
        assert hook is not None
        hook.close()


class Images(nn.Module):
    """A convolution in channels_last, and a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(8, 32, 3).to(memory_format=torch.channels_last)
        self.last = nn.Linear(32, 64)
        self.last.weight = nn.Parameter(self.last.weight.detach().T.contiguous().T)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.convolution(x)).mean((2, 3)))


def memory_formats_make_no_difference() -> None:
    """torch gives a hook views of a bucket that mix up gradients in channels_last.

    Residuals and means add up to the gradients, element by element. Networks in two formats are
    not compared: their gradients differ by rounding, which may decide a quantised value.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.randn(4, 8, 9, 9, generator=torch.Generator().manual_seed(rank))
    for codec in ("powersgd:2", "minmax:2", "topk:5%", "none"):
        for when in ("after", "during"):
            network = Images()
            assert not network.convolution.weight.is_contiguous()
            network(x).square().mean().backward()
            totals = {name: torch.clone(p.grad) for name, p in network.named_parameters()}  # type: ignore[arg-type]
            network.zero_grad()
            model = DistributedDataParallel(network)
            hook = ddp_hook(model, codec, when=when)
            seen: dict[str, Tensor] = {}
            hook.observers.append(lambda name, mean, seen=seen: seen.update({name: mean.clone()}))
            model(x).square().mean().backward()
            for name, parameter in network.named_parameters():
                assert parameter.grad is not None
                assert torch.equal(seen[name], parameter.grad)
                left, total = hook.averager.residual(name), totals[name].contiguous()
                dist.all_reduce(left)
                dist.all_reduce(total)
                found = left + ranks * parameter.grad
                torch.testing.assert_close(
                    found, total, rtol=0, atol=1e-4 * float(total.abs().max())
                )
            hook.close()


def layers_frozen_before_the_hook_are_averaged_or_left_alone() -> None:
    """A layer frozen between DDP and the hook ended in a KeyError that printed the parameter.

    DDP goes on averaging it, as zeros. Sparse embeddings that are frozen, or that DDP ignores, were
    refused although they have no gradient to average.
    """
    for codec in ("fp16", "minmax:4", "auto"):
        model = parallel(find_unused_parameters=True)
        model.module.first.requires_grad_(False)
        hook = ddp_hook(model, codec)
        for step in range(3):
            backward(model, step, dist.get_rank())
        assert model.module.last.weight.grad is not None
        state = hook.state_dict()
        hook.close()
        again = parallel(find_unused_parameters=True)
        again.module.first.requires_grad_(False)
        other = ddp_hook(again, codec)
        other.load_state_dict(state)
        backward(again, 3, dist.get_rank())
        other.close()
    for ignored in (False, True):
        network = nn.Sequential(nn.Embedding(9, 64, sparse=True), nn.Linear(64, 64))
        if ignored:
            network._ddp_params_and_buffers_to_ignore = ["0.weight"]  # type: ignore[assignment]
        else:
            network[0].requires_grad_(False)
        hook = ddp_hook(DistributedDataParallel(network), "minmax:4")
        assert set(hook.codecs) == {"1.weight", "1.bias"}
        hook.close()


def parameters_are_admitted_in_the_order_of_buckets() -> None:
    """Uncompressed buckets end in any order, in which ranks admitted parameters, on any thread.

    The ranks sum who used a parameter by that order: one may have taken it for unused.
    """
    model = parallel(find_unused_parameters=True)
    model.module.first.requires_grad_(False)
    hook = ddp_hook(model, "none")
    hook.observers.append(lambda _name, _mean: None)
    admit, threads = hook._admit, set[int]()

    def on_thread(name: str, parameter: Tensor) -> None:
        threads.add(threading.get_ident())
        admit(name, parameter)

    hook._admit = on_thread  # type: ignore[method-assign]
    backward(model, 0, dist.get_rank())
    assert threads == {threading.get_ident()}
    assert "first.weight" in hook.codecs
    hook.close()


def patterns_take_the_names_that_ddp_prints() -> None:
    """except_for=["module.first.*"], as named_parameters() prints it, was ignored in silence."""
    for pattern in ("first.*", "module.first.*"):
        hook = ddp_hook(parallel(), Policy(codec="minmax:4", except_for=[pattern]))
        assert str(hook.codecs["first.weight"]) == "none"
        assert str(hook.codecs["middle.weight"]) == "minmax:4"
        hook.close()


def names_of_ddp_are_parameters_names_everywhere() -> None:
    """set_codec and residual knew "first.weight" alone, where DDP prints "module.first.weight"."""
    model = parallel()
    hook = ddp_hook(model, "minmax:4")
    for step, name in enumerate(("first.weight", "module.first.weight")):
        hook.set_codec(name, ("topk:5%", "sign")[step])
        assert str(hook.codecs["first.weight"]) == ("topk:5%", "sign")[step]
        backward(model, step, dist.get_rank())
        assert torch.equal(hook.averager.residual(name), hook.averager.residual("first.weight"))
        assert hook.averager.residual(name).any()
    for name in ("module.second.weight", "module.module.first.weight"):
        refuses(lambda name=name: hook.set_codec(name, "sign"), f"parameter is {name!r}, needs")
        refuses(lambda name=name: hook.averager.residual(name), f"parameter is {name!r}, needs")
    hook.close()


def patterns_that_match_nothing_are_warned_of() -> None:
    """except_for=["embeding.*"], with a letter missing, or a module's name, had no effect."""
    model = parallel()
    model.module.first.requires_grad_(False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        patterns = ["module.first.*", "midle.*", "branch", "*.bias"]
        policy = Policy(codec="minmax:4", except_for=patterns)
        ddp_hook(model, policy).close()
        rules = Policy(except_for=["lost.*"])
        ddp_hook(parallel(), Auto(rules=rules)).close()
        ddp_hook(parallel(), HandSet(levels=[(0, "minmax:4")], rules=rules)).close()
    texts = [str(warning.message) for warning in warned]
    assert len(texts) == (0 if dist.get_rank() else 3), texts
    if texts:
        assert "has 'midle.*', 'branch', which match no parameter" in texts[0]
        assert all("'lost.*'" in text for text in texts[1:])
        assert {Path(warning.filename) for warning in warned} == {Path(__file__)}


def names_are_those_without_checkpointing() -> None:
    """A job that begins to checkpoint activations could not load its state, nor match patterns."""
    model = parallel()
    hook = ddp_hook(model, "minmax:4")
    backward(model, 0, dist.get_rank())
    state = copy.deepcopy(hook.state_dict())
    hook.close()
    network = Net()
    network.middle = checkpoint_wrapper(network.middle)
    hook = ddp_hook(DistributedDataParallel(network), "minmax:4")
    hook.load_state_dict(state)
    assert same(hook.state_dict()["parameters"], state["parameters"])
    hook.set_codec("middle._checkpoint_wrapped_module.weight", "sign")
    assert str(hook.codecs["middle.weight"]) == "sign"
    hook.close()


def a_policy_that_compresses_nothing_is_warned_of_once() -> None:
    """ddp_hook(DDP(nn.Linear(31, 31)), "powersgd:4") sent all as it was, and said nothing."""
    small = {"powersgd:4": 31, "auto": 31, "topk:1": 64, "none": 31, "minmax:4": 64}
    for codec, width in small.items():
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            hook = ddp_hook(DistributedDataParallel(nn.Linear(width, width)), codec)
            if codec == "topk:1":
                hook.set_codec("module.weight", "topk:0.9")
        texts = [str(warning.message) for warning in warned]
        expected = codec in ("powersgd:4", "auto", "topk:1") and dist.get_rank() == 0
        assert len(texts) == expected, (codec, texts)
        if expected:
            assert ("of fewer than 1,024 elements" if width == 31 else "share of 100%") in texts[0]
        hook.close()
