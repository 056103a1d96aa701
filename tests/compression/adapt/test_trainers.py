"""Trainers that own the loop: what no model could have is refused before, and the page's lines."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import (
    Accordion,
    AdaQS,
    Auto,
    CompressionError,
    HandSet,
    Policy,
    ddp_hook,
    hook_pair,
    trainer_callback,
)


def pair(policy: Any, **options: Any) -> object:
    return hook_pair(nn.Linear(2, 2), policy, **options)


def callback(policy: Any, **options: Any) -> object:
    pytest.importorskip("transformers")
    trainer: Any = SimpleNamespace(model_wrapped=None)  # as before `train`
    return trainer_callback(trainer, policy, **options)


SCHEDULE = Accordion(low="none", high="minmax:4")


@pytest.mark.parametrize("make", [pair, callback])
@pytest.mark.parametrize(
    ("policy", "options", "problem"),
    [
        ("zip", {}, "codec is 'zip', needs one of none"),
        (None, {}, "policy is None, needs a codec such as"),
        ("minmax:4", {"when": "before"}, 'when is \'before\', needs "after" or "during"'),
        ("auto", {"when": "before"}, 'when is \'before\', needs "after" or "during"'),
        ("auto", {"when": "during"}, "when is 'during', but \"auto\" times exchanges after the ba"),
        ("minmax:4", {"start_after": -1}, "start_after is -1, needs a number of steps"),
        (SCHEDULE, {}, "optimizer is None, needs that of the model: Accordion follows"),
        (Auto(schedule=SCHEDULE), {}, "optimizer is None, needs that of the model: Accordion"),
    ],
)
def test_a_bad_policy_is_refused_before_the_first_step(
    make: Callable[..., object], policy: Any, options: dict[str, Any], problem: str
) -> None:
    """An error came in the first backward pass, after a job's data and model had been loaded."""
    with pytest.raises(CompressionError) as raised:
        make(policy, **options)
    assert problem in str(raised.value)


@pytest.mark.parametrize("make", [pair, callback])
@pytest.mark.parametrize("policy", ["minmax:4", "auto"])
def test_what_a_model_may_have_is_accepted(make: Callable[..., object], policy: str) -> None:
    assert make(policy, start_after=3) is not None


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield DistributedDataParallel(nn.Linear(64, 64))
    finally:
        dist.destroy_process_group()


def test_schedules_that_look_at_no_learning_rates_need_no_optimizer(
    model: DistributedDataParallel,
) -> None:
    """They were refused: "HandSet follows its learning rates"."""
    schedule = HandSet(levels=[(0, "none"), (1, "bf16")], unit="steps")
    hook = ddp_hook(model, schedule)
    for _ in range(2):
        averages(model)
    assert str(hook.codecs["weight"]) == "bf16"
    assert hook.binding.records.events[-1]["rates"] == []
    assert pair(Auto(schedule=AdaQS(levels=("bf16", "none")))) is not None


def a_trainer(model: nn.Module, scaler: Any = None, **more: Any) -> Any:
    accelerator = SimpleNamespace(scaler=scaler)
    return SimpleNamespace(model_wrapped=model, accelerator=accelerator, **more)


def page() -> str:
    return (Path(__file__).parents[3] / "docs" / "compression.md").read_text()


def averages(model: nn.Module) -> None:
    model(torch.randn(2, 64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_torchs_lines_and_those_in_their_place_register_a_hook(
    model: DistributedDataParallel,
) -> None:
    """Lines of the page ran in no test, torch's own ones neither."""
    section = page().split("DDP Communication Hooks](")[1].split("\n## ")[0]
    theirs, ours = (part.split("```")[0] for part in section.split("```python\n")[1:])
    for lines in (theirs, ours):
        wrapped = DistributedDataParallel(model.module)
        exec(lines, {"powerSGD_hook": powerSGD_hook, "ddp_hook": ddp_hook, "model": wrapped})
        averages(wrapped)


def rows() -> dict[str, list[str]]:
    """Return the lines of each framework in the page's table."""
    table = page().split("## Where a trainer owns the loop")[1].split("\n\n")[2]
    cells = [row.split(" | ") for row in table.splitlines()[2:]]
    return {row[0].strip("| ").split()[0]: re.findall(r"`([^`]+)`", row[1]) for row in cells}


def test_lines_for_accelerate(model: DistributedDataParallel) -> None:
    prepare, hooked = rows()["Accelerate"]
    accelerator = SimpleNamespace(prepare=lambda *parts: parts)
    names: dict[str, Any] = {"ddp_hook": ddp_hook, "accelerator": accelerator, "model": model}
    exec(prepare.replace("...", "_"), names | {"_": None})
    exec(hooked, names)
    averages(model)
    assert names["hook"].figures()["steps"] == 1


def test_lines_for_the_trainer(model: DistributedDataParallel) -> None:
    pytest.importorskip("transformers")
    (line,) = rows()["Trainer"]
    callbacks: list[Any] = []
    trainer = a_trainer(model, add_callback=callbacks.append)
    exec(line, {"trainer_callback": trainer_callback, "trainer": trainer})
    (added,) = callbacks
    added.on_train_begin(SimpleNamespace(world_size=1), None, None)
    averages(model)
    assert added.hook.figures()["steps"] == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_a_second_call_of_train_goes_on_with_the_hook(
    model: DistributedDataParallel, compiled: bool
) -> None:
    """The Trainer keeps the model that it has wrapped, and compiled: both were refused."""
    pytest.importorskip("transformers")
    trainer = a_trainer(model)
    if compiled:
        trainer.model_wrapped = torch.compile(model, backend="eager")
    added = trainer_callback(trainer, "minmax:4")
    for _ in range(2):
        added.on_train_begin(SimpleNamespace(world_size=1), None, None)
        averages(trainer.model_wrapped)
    assert added.hook is not None
    assert added.hook.figures()["steps"] == 2
    first, trainer.model_wrapped = added.hook, DistributedDataParallel(nn.Linear(64, 64))
    added.on_train_begin(SimpleNamespace(world_size=1), None, None)
    assert added.hook is not first


def test_the_trainers_scaler_is_followed_and_hooks_of_former_models_are_closed(
    model: DistributedDataParallel,
) -> None:
    """Residuals kept the scale of the step before, and a second model left a hook behind."""
    pytest.importorskip("transformers")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))  # it has no scale before
    trainer = a_trainer(model, scaler)
    added = trainer_callback(trainer, "topk:1%")
    added.on_train_begin(SimpleNamespace(world_size=1), None, None)
    averages(model)
    first = added.hook
    assert first is not None
    residual = first.averager.residual("weight")
    assert residual.any()
    scaler.update(2.0)
    model.zero_grad()
    model(torch.zeros(1, 64)).sum().backward()  # the weight has no gradient but its residual
    left = first.averager.residual("weight") + model.module.weight.grad
    torch.testing.assert_close(left, residual / 2)
    trainer.model_wrapped = DistributedDataParallel(nn.Linear(64, 64))
    added.on_train_begin(SimpleNamespace(world_size=1), None, None)
    with pytest.raises(CompressionError, match="the hook was closed"):
        averages(model)


def test_epochs_of_the_trainer_are_those_of_a_schedule(model: DistributedDataParallel) -> None:
    """Levels by epochs stayed the first: the callback told the hook of no epoch's end."""
    pytest.importorskip("transformers")
    added = trainer_callback(a_trainer(model), HandSet(levels=[(0, "bf16"), (1, "minmax:4")]))
    added.on_epoch_end(None, None, None)
    added.on_train_begin(SimpleNamespace(world_size=1), None, None)
    averages(model)
    assert added.hook is not None
    assert str(added.hook.codecs["weight"]) == "bf16"
    added.on_epoch_end(None, None, None)
    assert str(added.hook.codecs["weight"]) == "minmax:4"


def test_names_are_those_before_compiling(model: DistributedDataParallel) -> None:
    """A layer that a policy left alone was compressed, and its name unknown, where compiled."""
    layers = nn.Sequential(*(torch.compile(nn.Linear(64, 64), backend="eager") for _ in range(2)))
    policy = Policy(codec="minmax:4", except_for=["module.0.weight"])
    compiled = ddp_hook(DistributedDataParallel(layers), policy)
    plain = ddp_hook(
        DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))), policy
    )
    assert str(compiled.codecs["0.weight"]) == "none"
    assert str(compiled.codecs["1.weight"]) == "minmax:4"
    plain.load_state_dict(compiled.state_dict())
    compiled.set_codec("module.1._orig_mod.weight", "minmax:8")
    assert str(compiled.codecs["1.weight"]) == "minmax:8"


def test_lines_for_lightning(model: DistributedDataParallel) -> None:
    pair_line, strategy = rows()["Lightning"]
    options: dict[str, Any] = {}
    names: dict[str, Any] = {
        "hook_pair": hook_pair,
        "module": model.module,
        "DDPStrategy": lambda **given: options.update(given),
    }
    exec(pair_line, names)
    exec(strategy, names)
    model.register_comm_hook(options["ddp_comm_state"], options["ddp_comm_hook"])
    averages(model)
    assert names["state"].hook.figures()["steps"] == 1
