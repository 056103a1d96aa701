"""One rank of a job whose gradients are compressed; run by test_hook.py. Arguments: what, more."""

import copy
import gc
import hashlib
import io
import json
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

# registers the backend where headrace is not installed
import headrace.torch  # noqa: F401 # pyright: ignore[reportUnusedImport]
from headrace.compression import (
    Auto,
    CodecSpec,
    CompressionError,
    HandSet,
    Policy,
    ddp_hook,
    hook_pair,
)
from headrace.compression.averaging import Averager
from headrace.compression.codecs.requests import run_together
from headrace.compression.run.exchanger import Exchanger
from headrace.compression.run.hook import Hook
from tests.compression import device_double
from tests.compression.states import same
from tests.waiting import ENDLESS_S, HANG_S

BUCKET_MB = 0.02  # several buckets
CODECS = ("powersgd:2", "powersgd:2+bf16", "minmax:4", "sign", "topk:5%", "dgc:5%", "randomk:10%",
          "qsgd:4", "fp8", "bf16", "fp16", "none")  # fmt: skip
RATE = 0.05


class Net(nn.Module):
    """Matrices, biases, a norm, and a branch that only some steps take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(40, 60)
        self.norm = nn.LayerNorm(60)
        self.middle = nn.Linear(60, 60)
        self.branch = nn.Linear(60, 60)
        self.last = nn.Linear(60, 30)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        x = x.to(self.first.weight.dtype)
        x = self.middle(torch.tanh(self.norm(self.first(x))))
        return self.last(torch.tanh(x + self.branch(x) if branch else x))


def data(step: int, rank: int) -> Tensor:
    return torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 * step + rank))


def parallel(**options: Any) -> DistributedDataParallel:
    options.setdefault("bucket_cap_mb", BUCKET_MB)
    return DistributedDataParallel(Net(), **options)


def backward(model: nn.Module, step: int, rank: int, **how: Any) -> None:
    model.zero_grad()
    model(data(step, rank), **how).square().mean().backward()


def descend(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=RATE)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def simulated(
    codec: str | Policy, steps: int, ranks: int, network: Callable[[], nn.Module] = Net
) -> Iterator[Tensor]:
    """Weights after each step of training with the same codec in this process."""
    model = network()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    group = [Averager(codec, shapes, rank=rank, ranks=ranks) for rank in range(ranks)]
    for step in range(steps):
        given: list[list[tuple[str, Tensor]]] = []
        for rank in range(ranks):
            backward(model, step, rank)
            given.append([(n, p.grad.clone()) for n, p in model.named_parameters()])  # type: ignore[union-attr]
        run_together([one.average(own) for one, own in zip(group, given, strict=True)])
        for parameter, (_, mean) in zip(model.parameters(), given[0], strict=True):
            parameter.grad = mean
        descend(model)
        yield weights(model)


def equals_the_simulation(when: str, codecs: Sequence[str] = CODECS, most: int = 20) -> None:
    """Every step, bit by bit: two ranks' sums commute."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for codec in codecs:
        steps = most if codec in ("powersgd:2", "minmax:4") and when == "after" else min(most, 6)
        model = parallel()
        hook = ddp_hook(model, codec, when=when)
        for step, expected in enumerate(simulated(codec, steps, ranks)):
            backward(model, step, rank)
            descend(model)
            assert torch.equal(weights(model), expected), (codec, step)
        assert hook.step == hook.statistics.steps == steps
        assert hook.statistics.sent_bytes > 0
        hook.close()


def bf16_net() -> nn.Module:
    return Net().bfloat16()


def fp16_net() -> nn.Module:
    return Net().half()


class Mixed(nn.Module):
    """Layers of 16 bits between layers of float32: DDP has buckets of both types."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.net.middle.bfloat16()
        self.net.branch.half()

    def forward(self, x: Tensor) -> Tensor:
        net = self.net
        x = torch.tanh(net.norm(net.first(x)))
        x = net.branch(net.middle(x.bfloat16()).half()).float()
        return net.last(x)


def sixteen_bits_equal_the_simulation() -> None:
    """Gradients of 16 bits were refused: codecs compute in float32, on all ranks alike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    codecs = ("powersgd:2+bf16", "minmax:4", "topk:5%", "bf16", "fp16", "none",
              Policy(codec="minmax:4", residuals="bf16"))  # fmt: skip
    for network in (bf16_net, fp16_net, Mixed):
        for index, codec in enumerate(codecs if network is bf16_net else codecs[::3]):
            model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
            hook = ddp_hook(model, codec, when=("after", "during")[index % 2])
            for step, expected in enumerate(simulated(codec, 2, ranks, network)):
                backward(model, step, rank)
                descend(model)
                assert torch.equal(weights(model), expected), (network, codec, step)
            for saved in hook.state_dict()["parameters"].values():
                wide = codec is not codecs[-1]
                assert saved["residual"].dtype == (torch.float32 if wide else torch.bfloat16)
            hook.close()


def a_cast_to_the_gradients_own_type_is_what_ddp_does() -> None:
    """As torch's bf16_compress_hook on a model in bfloat16, bit by bit, and warned of once."""
    plain = DistributedDataParallel(bf16_net(), bucket_cap_mb=BUCKET_MB)
    model = DistributedDataParallel(bf16_net(), bucket_cap_mb=BUCKET_MB)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        hook = ddp_hook(model, "bf16")
    texts = [str(warning.message) for warning in warned]
    assert any("gradients have 16 bits already" in text for text in texts) == (not dist.get_rank())
    for step in range(3):
        for network in (plain, model):
            backward(network, step, dist.get_rank())
            descend(network)
        assert torch.equal(weights(plain), weights(model)), step
    assert hook.statistics.sent_bytes == hook.statistics.plain_bytes > 0
    assert hook.averager.is_plain(dict.fromkeys(hook.codecs, torch.bfloat16))
    hook.close()


def a_pair_of_state_and_hook_is_the_same_hook() -> None:
    """Trainers that own the loop register a state and a hook, before there is a wrapped model."""
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


def ranks_of_a_group_may_stand_in_any_order() -> None:
    """Shards went to the wrong ranks: torch sorts the ranks of a group that a hook makes."""
    options: Any = {"sort_ranks": False}
    try:
        group = dist.new_group([1, 0], **options)
    except TypeError:  # torch 2.14 sorts those of all groups
        return
    models = [parallel(process_group=group) for _ in range(2)]
    hooks = [
        ddp_hook(model, "minmax:4", when=when)
        for model, when in zip(models, ("after", "during"), strict=True)
    ]
    for model in models:
        backward(model, 0, dist.get_rank())
        descend(model)
    assert torch.equal(*map(weights, models))
    for hook in hooks:
        hook.close()


def a_hooks_own_group_has_the_timeout_of_its_models() -> None:
    """It had torch's default of 30 minutes, whatever the job's group has."""
    limit = timedelta(seconds=2 * HANG_S)
    group = dist.new_group(timeout=limit)
    hook = ddp_hook(parallel(process_group=group), "minmax:4", when="during")
    own: Any = hook._group._get_backend(torch.device("cpu"))  # pyright: ignore[reportPrivateUsage]
    assert own.options._timeout == limit
    hook.close()


class Scalars(dict[str, float]):
    """A writer as TensorBoard's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self[tag] = scalar_value
        self["step"] = global_step


def figures_are_bytes_saved_level_and_exposed_seconds() -> None:
    for codec in ("minmax:4", "auto"):
        model = parallel()
        hook = ddp_hook(model, codec)
        for step in range(2):
            backward(model, step, dist.get_rank())
        figures, scalars = hook.figures(), Scalars()
        hook.write_figures(scalars, 7)
        assert scalars.pop("step") == 7
        assert scalars == {f"compression/{name}": value for name, value in figures.items()}
        saved = hook.statistics.plain_bytes - hook.statistics.sent_bytes
        assert figures["saved_bytes"] == saved
        assert (saved > 0) == (codec != "auto")  # which has not tried a codec yet
        assert figures["exposed_s"] > 0
        assert ("level" in figures) == (codec == "auto")
        samples = {s.name: s.value for m in hook.metrics().collect() for s in m.samples}
        assert samples["headrace_compression_saved_bytes"] == saved
        assert samples["headrace_compression_waited_seconds_total"] == figures["exposed_s"]
        assert ("headrace_compression_level" in samples) == (codec == "auto")
        hook.close()


def compression_starts_after_steps() -> None:
    """The first steps are DDP's own, and a resumed job goes on counting."""
    rank = dist.get_rank()
    plain = parallel()
    for codec in ("minmax:2", "auto", HandSet(levels=[(0, "minmax:2")])):
        for parameter in plain.module.parameters():
            parameter.grad = None
        plain = parallel()
        model = parallel()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        hook = ddp_hook(model, codec, optimizer=optimizer, start_after=2)
        for step in range(2):
            for network in (plain, model):
                backward(network, step, rank)
                descend(network)
            assert torch.equal(weights(plain), weights(model)), (codec, step)
            assert hook.last.sent_bytes == hook.last.plain_bytes
        state = copy.deepcopy(hook.state_dict())
        if codec != "auto":
            backward(model, 2, rank)
            assert hook.last.sent_bytes < hook.last.plain_bytes
            again = parallel()
            resumed = ddp_hook(again, codec, optimizer=optimizer, start_after=2)
            resumed.load_state_dict(state)
            backward(again, 2, rank)
            assert resumed.last.sent_bytes < resumed.last.plain_bytes
            resumed.close()
        hook.close()
    for wrong in (-1, 1.5, "many"):
        refuses(
            lambda wrong=wrong: ddp_hook(parallel(), "none", start_after=wrong),  # type: ignore[arg-type]
            f"start_after is {wrong!r}, needs",
        )
    refuses(
        lambda: ddp_hook(parallel(), "none", start_after=rank), "values of start_after of ranks"
    )


def none_equals_plain() -> None:
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        plain, ours = parallel(**options), parallel(**options)
        hook = ddp_hook(ours, "none", when="during")
        for step in range(4):
            for model in (plain, ours):
                backward(model, step, dist.get_rank())
                descend(model)
            assert torch.equal(weights(plain), weights(ours)), (options, step)
        hook.close()


def not_finite_skips_on_all_ranks() -> None:
    for when in ("after", "during"):
        for codec in ("powersgd:2", "minmax:4", "dgc:5%"):
            model = parallel()
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            hook = ddp_hook(model, codec, when=when, scaler=scaler)
            for step in range(5):
                before, kept = weights(model), copy.deepcopy(hook.state_dict()["parameters"])
                optimizer.zero_grad()
                loss = model(data(step, dist.get_rank())).square().mean()
                if step == 3 and dist.get_rank() == 1:
                    loss = loss * torch.nan
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                skipped = torch.equal(weights(model), before)
                assert skipped == (step == 3), (codec, step)
                if skipped:
                    now = hook.state_dict()["parameters"]
                    assert same(now, kept), codec
                    assert scaler.get_scale() == 32.0
            parts: list[Any] = [None, None]
            dist.all_gather_object(parts, digest(weights(model)))
            assert parts[0] == parts[1]
            hook.close()


def residuals_follow_the_scale() -> None:
    """Whatever the scales, powers of 2, the weights are those without."""
    found: list[Tensor] = []
    for scales in ((1.0, 1.0, 1.0, 1.0), (64.0, 8.0, 256.0, 1.0)):
        model = parallel()
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))  # it has no scale before
        hook = ddp_hook(model, "topk:5%", scaler=scaler)
        for step, scale in enumerate(scales):
            scaler.update(scale)
            model.zero_grad()
            (scale * model(data(step, dist.get_rank())).square().mean()).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale)  # type: ignore[union-attr]
            descend(model)
        found.append(weights(model))
        hook.close()
    assert torch.equal(*found)
    last, saved = copy.deepcopy(model.module), hook.state_dict()
    saved = copy.deepcopy(saved)
    saved["scale"] = 64.0
    for entry in saved["parameters"].values():
        entry["residual"] *= 64.0
    residuals = {name: hook.averager.residual(name) for name in hook.codecs}
    resumed = ddp_hook(DistributedDataParallel(last), "topk:5%")  # without a scaler
    resumed.load_state_dict(saved)
    assert all(torch.equal(resumed.averager.residual(n), part) for n, part in residuals.items())
    assert resumed.state_dict()["scale"] == 1.0
    resumed.close()


def _observe_alone(inside: Any, seen: set[str], name: str, mean: Tensor) -> None:
    assert inside.acquire(blocking=False), "two calls at once"
    time.sleep(0.001)
    assert torch.isfinite(mean).all()
    seen.add(name)
    inside.release()


def observers_are_called_one_at_a_time_with_finite_means() -> None:
    for codec in ("none", "bf16"):
        model = parallel(bucket_cap_mb=0.001)
        hook = ddp_hook(model, codec)
        seen: set[str] = set()
        hook.observers.append(partial(_observe_alone, threading.Lock(), seen))
        for step in range(3):
            backward(model, step, dist.get_rank())
        assert seen == {*hook.codecs}
        if codec == "bf16":
            (model(data(3, dist.get_rank())).square().mean() * torch.inf).backward()
        hook.close()


def accumulates_without_synchronization() -> None:
    model, alone = parallel(), Net()
    hook = ddp_hook(model, "none")
    with model.no_sync():
        backward(model, 0, dist.get_rank())
    assert hook.step == 0
    model(data(1, dist.get_rank())).square().mean().backward()
    assert hook.step == 1
    for step in range(2):
        for rank in range(2):
            (alone(data(step, rank)).square().mean() / 2).backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    hook.close()


def unused_parameters_keep_their_residual() -> None:
    """What was sent of the residual of a parameter that no rank used was lost: DDP drops the mean.

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


def codecs_change_between_steps() -> None:
    model = parallel()
    hook = ddp_hook(model, "powersgd:1", when="during")
    seen: dict[str, Tensor] = {}
    hook.observers.append(lambda name, mean: seen.update({name: mean.clone()}))
    sent: list[float] = []
    for step, codec in enumerate(("powersgd:1", "powersgd:4", "none", "none", "minmax:4")):
        if step:
            hook.set_codec(None, codec)
        backward(model, step, dist.get_rank())
        sent.append(hook.last.sent_bytes)
        assert seen.keys() == dict(model.module.named_parameters()).keys()
        for name, parameter in model.module.named_parameters():
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, seen[name])
    flag_bytes = 4  # whether the step is finite, where residuals are left to be sent
    assert sent[0] < sent[1] < sent[2] == sent[3] + flag_bytes
    assert sent[3] > sent[4] > sent[0]
    hook.close()


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


def refuses(call: Callable[[], object], text: str) -> None:
    try:
        call()
    except CompressionError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)


def bad_arguments_are_refused() -> None:
    rank = dist.get_rank()
    refuses(lambda: ddp_hook(Net(), "none"), "needs a DistributedDataParallel")  # type: ignore[arg-type]
    model = parallel()
    refuses(lambda: ddp_hook(model, "zip"), "needs one of none")
    for wrong in (None, 5):
        refuses(lambda wrong=wrong: ddp_hook(model, wrong), f"policy is {wrong}, needs a codec")  # type: ignore[call-overload]
    refuses(lambda: ddp_hook(model, "none", when="before"), 'needs "after" or "during"')
    refuses(lambda: ddp_hook(model, "none", scaler=3), "needs a torch.amp.GradScaler")
    refuses(lambda: ddp_hook(model, f"powersgd:{1 + rank}"), "policies of ranks differ: rank 0 has")
    hook = ddp_hook(model, "none")
    refuses(lambda: ddp_hook(model, "none"), "has a communication hook already")
    refuses(lambda: pickle.dumps(model), "call ddp_hook again")
    refuses(lambda: copy.deepcopy(model), "call ddp_hook again")
    hook.close()
    double = DistributedDataParallel(Net().double())
    refuses(lambda: ddp_hook(double, "topk:5%"), "'first.weight' is torch.float64")
    # "auto" began without compression, and failed at the first trial, some steps into the job
    refuses(lambda: ddp_hook(double, "auto"), "'first.weight' is torch.float64, codec bf16 needs")
    levels = HandSet(levels=[(0, "none"), (1, "powersgd:4")])
    optimizer = torch.optim.SGD(double.parameters(), lr=RATE)
    text = "'first.weight' is torch.float64, codec powersgd:4 needs"
    refuses(lambda: ddp_hook(double, levels, optimizer=optimizer), text)
    hook = ddp_hook(DistributedDataParallel(Net().double()), "none")
    refuses(lambda: hook.set_codec(None, "powersgd:4"), text)
    assert {str(codec) for codec in hook.codecs.values()} == {"none"}, "nothing has changed"
    hook.close()
    policy = Policy(codec="topk:5%", except_for=["*"])
    ddp_hook(double, policy).close()
    sparse = DistributedDataParallel(nn.Sequential(nn.Embedding(9, 9, sparse=True)))
    refuses(lambda: ddp_hook(sparse, "none"), "needs sparse=False")


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


def models_that_torch_averages_otherwise_are_refused() -> None:
    """Errors spoke of tuples, or there was none: buckets that torch skips were waited for."""
    network = Net()
    model = DistributedDataParallel(
        network, find_unused_parameters=True, skip_all_reduce_unused_params=True
    )
    refuses(lambda: ddp_hook(model, "bf16"), "needs find_unused_parameters alone")
    network = Net()
    _apply_optimizer_in_backward(torch.optim.SGD, network.parameters(), {"lr": RATE})
    model = DistributedDataParallel(network)
    refuses(lambda: ddp_hook(model, "bf16"), "needs an optimizer that steps after the backward")
    model = parallel()
    model._use_python_reducer = True  # as torch does, which takes seconds
    refuses(lambda: ddp_hook(model, "bf16"), "needs True there")
    state, on_bucket = hook_pair(network, "bf16")
    gradient = torch.zeros(3)
    refuses(lambda: on_bucket(state, (gradient, network.last.bias)), "needs True there")


def uneven_inputs_are_joined() -> None:
    """A rank whose inputs have ended sends its residual with gradients of zero."""
    for codec, when, options in (
        ("minmax:4", "after", {}),
        ("topk:5%", "during", {"find_unused_parameters": True}),
        ("powersgd:2", "after", {"static_graph": True}),
    ):
        model = parallel(**options)
        hook = ddp_hook(model, codec, when=when)
        with model.join():
            for step in range(3 + 2 * dist.get_rank()):
                backward(model, step, dist.get_rank())
                descend(model)
        assert hook.step == 5
        hook.close()


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


def hooks_close_after_the_groups_are_destroyed() -> None:
    """`destroy_process_group()` destroys a hook's own group with the others."""
    hooks = [ddp_hook(parallel(), "bf16", when=when) for when in ("after", "during")]
    dist.destroy_process_group()
    for hook in hooks:
        hook.close()


def checks() -> None:
    for check in (
        none_equals_plain,
        sixteen_bits_equal_the_simulation,
        a_cast_to_the_gradients_own_type_is_what_ddp_does,
        a_pair_of_state_and_hook_is_the_same_hook,
        a_pair_goes_on_where_the_module_is_wrapped_again,
        a_pair_continues_from_a_state_in_its_first_step,
        ranks_of_a_group_may_stand_in_any_order,
        a_hooks_own_group_has_the_timeout_of_its_models,
        figures_are_bytes_saved_level_and_exposed_seconds,
        compression_starts_after_steps,
        not_finite_skips_on_all_ranks,
        residuals_follow_the_scale,
        observers_are_called_one_at_a_time_with_finite_means,
        accumulates_without_synchronization,
        unused_parameters_keep_their_residual,
        parameters_that_were_frozen_at_first_keep_their_residual,
        codecs_change_between_steps,
        a_checkpoint_of_another_policy_keeps_the_hooks_codecs,
        a_checkpoint_of_the_policy_or_an_earlier_version_has_its_codecs,
        memory_formats_make_no_difference,
        layers_frozen_before_the_hook_are_averaged_or_left_alone,
        patterns_take_the_names_that_ddp_prints,
        names_of_ddp_are_parameters_names_everywhere,
        a_policy_that_compresses_nothing_is_warned_of_once,
        patterns_that_match_nothing_are_warned_of,
        models_that_torch_averages_otherwise_are_refused,
        uneven_inputs_are_joined,
        names_are_those_without_checkpointing,
        bad_arguments_are_refused,
    ):
        check()
    equals_the_simulation("after")
    equals_the_simulation("during")
    hooks_close_after_the_groups_are_destroyed()


def staged() -> None:
    """With payloads that are staged as a GPU's, and torch's operators in place of native loops."""
    late = device_double.install()
    codecs = ("powersgd:2+bf16", "minmax:4", "topk:5%")
    equals_the_simulation("after", ("minmax:4",), 3)
    assert late.copies
    assert set(late.followed) == set(late.marks)
    equals_the_simulation("during", codecs, 3)
    assert set(late.followed) == set(late.marks)
    assert late.beside_marks
    assert None not in late.beside_marks


def on_gpu() -> None:
    """One GPU, which the ranks share: training as on the CPU, and equal on the ranks."""
    gpu = torch.device("cuda", 0)
    torch.backends.cuda.matmul.allow_tf32 = False
    rank = dist.get_rank()
    for codec in ("powersgd:2", "minmax:8", "sign", "topk:5%", "randomk:10%", "bf16", "none"):
        for when in ("after", "during"):
            models = [parallel(), DistributedDataParallel(Net().to(gpu), bucket_cap_mb=BUCKET_MB)]
            hooks = [ddp_hook(model, codec, when=when) for model in models]
            for step in range(4):
                backward(models[0], step, rank)
                models[1].zero_grad()
                models[1](data(step, rank).to(gpu)).square().mean().backward()
                for model in models:
                    descend(model)
            own, there = (weights(model).cpu() for model in models)
            torch.testing.assert_close(there, own, rtol=1e-2, atol=1e-3)
            digests: list[Any] = [None, None]
            dist.all_gather_object(digests, digest(there))
            assert digests[0] == digests[1], (codec, when)
            for kept in hooks[1].state_dict()["parameters"].values():
                assert kept["residual"] is None or kept["residual"].is_cuda
            for hook in hooks:
                hook.close()


def resumable(folder: str, how: str) -> None:
    """Six steps, of which the last three can be another job's, of other buckets."""
    found: dict[str, str] = {}
    path = Path(folder, f"{dist.get_rank()}.pt")
    for number, codec in enumerate(("powersgd:2", "minmax:4", "dgc:5%")):
        model = parallel(bucket_cap_mb=BUCKET_MB if how == "whole" else 1.0)
        hook = ddp_hook(model, codec)
        saved = path.with_suffix(f".{number}")
        first = 0
        if how == "rest":
            state = torch.load(saved)
            model.module.load_state_dict(state["model"])
            hook.load_state_dict(state["hook"])
            first = 3
        for step in range(first, 6):
            backward(model, step, dist.get_rank())
            descend(model)
            if how == "whole" and step == 2:
                kept = io.BytesIO()
                torch.save({"model": model.module.state_dict(), "hook": hook.state_dict()}, kept)
                saved.write_bytes(kept.getvalue())
        found[codec] = digest(weights(model))
        hook.close()
    say("RESULTS", json.dumps(found))
    if how == "whole":
        say("ready", os.getpid())
        time.sleep(60)  # killed meanwhile


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece: threads write, too
    sys.stdout.flush()


def dies_between_phases(codec: str, when: str) -> None:
    """The last rank is killed when the first exchange of a step is complete, on any thread."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [dist.new_group([0, 1]), dist.new_group([2])]
    small = parallel(process_group=parts[rank // 2])  # of its own: others do not wait for it
    alone = ddp_hook(small, "topk:5%", when=when)
    backward(small, 0, rank)
    sizes = [None] * ranks
    dist.all_gather_object(sizes, digest(*(p.grad for p in small.parameters())))  # type: ignore[misc]
    assert sizes[0] == sizes[1] != sizes[2]
    alone.close()
    model = parallel()
    hook: Hook = ddp_hook(model, codec, when=when)
    for step in range(2):
        backward(model, step, rank)
    before = copy.deepcopy(hook.state_dict()["parameters"])
    if rank == ranks - 1:
        run_round, rounds = Exchanger._round, [0]  # pyright: ignore[reportPrivateUsage]

        def die(self: Exchanger, running: Any) -> Any:
            rounds[0] += 1
            if rounds[0] == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return run_round(self, running)

        Exchanger._round = die  # type: ignore[method-assign]
    try:
        backward(model, 2, rank)
    except RuntimeError as error:
        say("failed:", type(error).__name__, error)
        say("missing", getattr(error, "missing", None))
    now = hook.state_dict()["parameters"]
    say("unchanged" if same(now, before) else "changed", hook.averager.torn)
    os._exit(0)


def main(what: str, backend: str, *more: str) -> None:
    torch.set_num_threads(1)
    timeout_s = ENDLESS_S if what == "dies" else HANG_S
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    jobs: dict[str, Callable[..., None]] = {
        "checks": checks,
        "staged": staged,
        "gpu": on_gpu,
        "resumable": resumable,
        "dies": dies_between_phases,
    }
    jobs[what](*more)
    if dist.is_initialized():
        dist.destroy_process_group()
    say("all done")


if __name__ == "__main__":
    main(*sys.argv[1:])
