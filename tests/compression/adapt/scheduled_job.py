"""One rank of a job whose codecs follow a schedule, run by test_scheduled.py."""

import copy
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compression.accuracy.tasks import Task
from benchmarks.compression.accuracy.training import Trainer
from headrace.compression import Accordion, Auto, CompressionError, Policy, ddp_hook
from headrace.compression.adapt.binding import ScheduleBinding
from headrace.errors import CommunicationError

RANKS = 2
RULES = Policy(smallest=64)
LOW, HIGH = "powersgd:4", "powersgd:1"
RATE = 0.02
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
"""Buckets of other sizes align gradients differently, so that products round differently; training
amplifies the differences."""
STEPS = Accordion(low=LOW, high=HIGH, window=8, unit="steps", rules=RULES)


def module() -> nn.Module:
    """Return a network that is the same on all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 24), nn.Linear(24, 5))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return a rank's share of a step's batch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(6, 12, generator=generator)
    return inputs, inputs[:, :5].argmax(-1)


class Training:
    """A model, its optimizer and its hook."""

    def __init__(
        self, schedule: Any, when: str = "after", rate: float = RATE, *, frozen: bool = False
    ) -> None:
        network = module()
        network[0].requires_grad_(not frozen)  # type: ignore[index]
        # buckets of 2 KB: several of them
        self.model = DistributedDataParallel(network, bucket_cap_mb=0.002)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.hook: Any = ddp_hook(self.model, schedule, when=when, optimizer=self.optimizer)

    def run(self, steps: Sequence[int], rates: dict[int, float] | None = None) -> None:
        for step in steps:
            for group in self.optimizer.param_groups:
                group["lr"] = (rates or {}).get(step, group["lr"])
            self.optimizer.zero_grad()
            inputs, targets = batch(step, dist.get_rank())
            nn.functional.cross_entropy(self.model(inputs), targets).backward()
            self.optimizer.step()

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.module.parameters()).detach().clone()

    def codecs(self) -> dict[str, str]:
        return {name: str(codec) for name, codec in self.hook.codecs.items()}


def resumes_within_a_window() -> None:
    """Saved after 11 of 30 steps, in the second window of 8: goes on as if uninterrupted."""
    for when in ("after", "during"):
        rates = {17: RATE / 10}
        whole = Training(STEPS, when)
        whole.run(range(30), rates)
        first = Training(STEPS, when)
        first.run(range(11), rates)
        saved = copy.deepcopy(
            [first.model.module.state_dict(), first.optimizer.state_dict(), first.hook.state_dict()]
        )
        second = Training(STEPS, when)
        second.model.module.load_state_dict(saved[0])
        second.optimizer.load_state_dict(saved[1])
        second.hook.load_state_dict(saved[2])
        second.run(range(11, 30), rates)
        torch.testing.assert_close(whole.weights(), second.weights(), **CLOSE)
        assert whole.codecs() == second.codecs()
        kinds = {str(codec) for codec in whole.codecs().values()}
        events = [event["reason"] for event in whole.hook.binding.records.events]
        assert "step of rate decay" in events, events
        assert "norms compared" in events, (events, kinds)
        for training in (whole, first, second):
            training.hook.close()


def another_policys_state_begins_the_schedule_anew() -> None:
    """It was refused, or had the other policy's codecs; a step that had ended was forgotten."""
    other = Accordion(low=LOW, high=HIGH, window=20, unit="steps", rules=RULES)
    by_auto = Auto(levels=["none"], window=3, schedule=STEPS, rules=RULES)
    for saved, policy, marks in (
        (STEPS, other, 0),
        ("powersgd:2", STEPS, 0),
        (by_auto, STEPS, 4),
        (STEPS, by_auto, 4),
        (by_auto, by_auto, 4),
        (STEPS, STEPS, 4),
    ):
        first, second = Training(saved), Training(policy)
        first.run(range(5))
        expected = second.codecs()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            second.hook.load_state_dict(copy.deepcopy(first.hook.state_dict()))
        is_foreign = saved is not policy and not (saved is by_auto and policy is STEPS)
        assert len(warned) == (is_foreign and dist.get_rank() == 0), (saved, policy, warned)
        assert second.hook.binding.steps == marks
        assert second.codecs() == expected
        for name in expected:
            kept = first.hook.averager.residual(name)
            assert torch.equal(second.hook.averager.residual(name), kept)
        second.run(range(5, 7))
        assert second.hook.binding.steps == (marks + 2 if marks else 1), "the fifth step, too"
        first.hook.close()
        second.hook.close()


def other_layers_begin_the_schedule_anew() -> None:
    """States were refused where layers that had been frozen are trained, or the other way round."""
    for frozen in (True, False):
        first, second = Training(STEPS, frozen=frozen), Training(STEPS, frozen=not frozen)
        first.run(range(5))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            second.hook.load_state_dict(copy.deepcopy(first.hook.state_dict()))
        assert len(warned) == (frozen and dist.get_rank() == 0), warned
        assert all("with other layers, this hook of" in str(warning.message) for warning in warned)
        assert second.hook.binding.steps == (0 if frozen else 4)
        assert second.codecs()["2.weight"] == LOW
        residuals = [each.hook.averager.residual("2.weight") for each in (first, second)]
        assert torch.equal(*residuals)
        second.run(range(5, 7))
        first.hook.close()
        second.hook.close()


def layers_that_are_frozen_at_first_are_followed() -> None:
    """They were averaged uncompressed for ever."""
    network = module()
    model = DistributedDataParallel(network, find_unused_parameters=True)
    network[0].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    hook: Any = ddp_hook(model, STEPS, optimizer=optimizer)
    for step in range(3):
        inputs, targets = batch(step, dist.get_rank())
        nn.functional.cross_entropy(model(inputs), targets).backward()
        network[0].requires_grad_(True)  # type: ignore[index]
    assert str(hook.codecs["0.weight"]) == LOW
    assert hook.averager.residual("0.weight").any()
    assert hook.binding.steps == 2
    state = copy.deepcopy(hook.state_dict())
    assert "0.weight" in state["schedule"]["binding"]["codecs"]
    hook.load_state_dict(state)
    assert hook.binding.steps == 2
    hook.close()


def epochs_and_switches_keep_residuals() -> None:
    schedule = Accordion(low=LOW, high=HIGH, window=1, eta=1e6, rules=RULES)
    training = Training(schedule)
    name = "0.weight"
    assert training.codecs() == {
        key: "none" if key.endswith("bias") else LOW for key in training.codecs()
    }
    for epoch, wanted in enumerate((LOW, LOW, HIGH, HIGH, LOW, HIGH)):
        assert training.codecs()[name] == wanted, (epoch, training.codecs())
        training.run(range(4 * epoch, 4 * epoch + 4), {16: RATE / 10})
        residual = training.hook.averager.residual(name)
        if wanted == HIGH:  # at rank 4 little may be left over
            assert residual.norm() > 0
        if epoch == 3:
            for group in training.optimizer.param_groups:
                group["lr"] = RATE / 10
        training.hook.epoch()
        assert torch.equal(training.hook.averager.residual(name), residual)
    gathered: list[Any] = [None] * RANKS
    events = [
        {key: value for key, value in event.items() if key != "at"}
        for event in training.hook.binding.records.events
    ]
    dist.all_gather_object(gathered, events)
    assert gathered[0] == gathered[1], gathered
    assert [event["mark"] for event in events if event["changed"]] == [2, 4, 5], events


def different_rates_are_an_error_on_all_ranks() -> None:
    training = Training(STEPS)
    training.run(range(8))
    try:
        training.run(range(8, 20), {9: RATE / 10} if dist.get_rank() else {})
    except CommunicationError as error:
        assert "levels of compression of ranks differ: rank 0 has" in str(error), error
    else:
        raise AssertionError("no error")


def equals_workers_in_one_process() -> None:
    """Fifty steps here and in the accuracy study's training end with the same weights."""
    training = Training(STEPS)
    training.run(range(50), {30: RATE / 10})
    task = Task(
        name="small",
        data=lambda _: (torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0)),
        model=module,
        epochs=1,
        batch=12,
        rate=RATE,
        decays=(),
        window=1,
        low=LOW,
        high=HIGH,
        ladder=(HIGH, LOW),
    )
    trainer = Trainer(task, 7, RULES, workers=RANKS)
    binding = ScheduleBinding(STEPS, trainer.shapes, trainer.set_codecs)
    for step in range(50):
        rate = RATE / 10 if step >= 30 else RATE
        if step:
            binding.end_step([rate])
        trainer.set_rate(rate)
        trainer.step([batch(step, rank) for rank in range(RANKS)])
        for name, mean in trainer.means.items():
            binding.observe(name, mean)
    weights = nn.utils.parameters_to_vector(trainer.parameters).detach()
    torch.testing.assert_close(training.weights(), weights, **CLOSE)
    events = [
        [(event["step"], event["reason"], event["changed"]) for event in each.records.events]
        for each in (training.hook.binding, binding)
    ]
    assert events[0] == events[1], events
    assert any(event[2] for event in events[0])


def an_optimizer_is_needed() -> None:
    try:
        ddp_hook(DistributedDataParallel(module()), STEPS)
    except CompressionError as error:
        assert "optimizer is None, needs that of the model" in str(error)
    else:
        raise AssertionError("no error")


def rank_0_logs_decisions() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decisions.jsonl"
        with mock.patch.dict(os.environ, HEADRACE_COMPRESSION_LOG=str(path)):
            training = Training(STEPS)
        training.run(range(10))
        if dist.get_rank():
            assert not path.exists()
        else:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            assert [row["step"] for row in rows] == [1, 8], rows
            assert rows[1]["reason"] == "norms compared"
            assert set(rows[1]["norms"]) == set(training.codecs())


CHECKS = (
    resumes_within_a_window,
    another_policys_state_begins_the_schedule_anew,
    other_layers_begin_the_schedule_anew,
    layers_that_are_frozen_at_first_are_followed,
    epochs_and_switches_keep_residuals,
    equals_workers_in_one_process,
    an_optimizer_is_needed,
    rank_0_logs_decisions,
    different_rates_are_an_error_on_all_ranks,
)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {}
    for check in CHECKS:
        try:
            check()
            results[check.__name__] = ""
        except Exception:  # every check is to be reported
            results[check.__name__] = traceback.format_exc()
    print("RESULTS", json.dumps(results), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
