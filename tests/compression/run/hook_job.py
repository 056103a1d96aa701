"""One rank of a job whose gradients are compressed; run by test_hook.py. Arguments: what, more."""

import copy
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
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

# registers the backend where headrace is not installed
import headrace.torch  # noqa: F401 # pyright: ignore[reportUnusedImport]
from headrace.compression import (
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
from tests.compression.run.hook_checkpoints import (
    a_checkpoint_of_another_policy_keeps_the_hooks_codecs,
    a_checkpoint_of_the_policy_or_an_earlier_version_has_its_codecs,
)
from tests.compression.run.hook_pairs import (
    a_pair_continues_from_a_state_in_its_first_step,
    a_pair_goes_on_where_the_module_is_wrapped_again,
    a_pair_of_state_and_hook_is_the_same_hook,
)
from tests.compression.run.hook_parameters import (
    a_policy_that_compresses_nothing_is_warned_of_once,
    layers_frozen_before_the_hook_are_averaged_or_left_alone,
    memory_formats_make_no_difference,
    names_are_those_without_checkpointing,
    names_of_ddp_are_parameters_names_everywhere,
    parameters_are_admitted_in_the_order_of_buckets,
    parameters_that_were_frozen_at_first_keep_their_residual,
    patterns_take_the_names_that_ddp_prints,
    patterns_that_match_nothing_are_warned_of,
    unused_parameters_keep_their_residual,
)
from tests.compression.run.hook_training import (
    BUCKET_MB,
    RATE,
    Net,
    backward,
    data,
    descend,
    digest,
    parallel,
    refuses,
    weights,
)
from tests.compression.states import same
from tests.waiting import ENDLESS_S, HANG_S

CODECS = ("powersgd:2", "powersgd:2+bf16", "minmax:4", "sign", "topk:5%", "dgc:5%", "randomk:10%",
          "qsgd:4", "fp8", "bf16", "fp16", "none")  # fmt: skip


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
        parameters_are_admitted_in_the_order_of_buckets,
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
