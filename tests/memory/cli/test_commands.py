"""``headrace memory``: a model is measured, planned, shown and verified."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import torch

from headrace.cli.main import main
from headrace.memory import MismatchError, fit
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.verify import verify
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import plain_schedule
from tests.memory.graphs import random_graph
from tests.memory.test_profile import profile_of
from tests.waiting import HANG_S

SAMPLED = pytest.mark.sampled(1)

MODEL = """
import torch
from torch import nn

def build():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)))
    sample = torch.randn(256, 64), torch.randn(256, 64)
    return model, sample, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1)

def pair():
    return nn.Linear(2, 2), torch.randn(4, 2)

def alone():
    return nn.Linear(2, 2)

def classes():
    return nn.Linear(16, 64), (torch.randn(32, 16), torch.arange(32)), nn.CrossEntropyLoss()

def sized(batch):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)))
    return model, (torch.randn(batch, 64), torch.randn(batch, 64)), nn.MSELoss()

def beside(batch):
    import planned_beside
    return sized(batch)

def fixed(batch):
    return sized(8)

def narrow():
    return nn.Linear(2, 2), torch.randn(4, 3)

def evaluated():
    return nn.Linear(2, 2).eval(), torch.randn(4, 2)

def swapped():
    return torch.randn(4, 2), nn.Linear(2, 2)

def functional():
    return nn.Linear(2, 2), (torch.randn(4, 2), torch.randn(4, 2)), nn.functional.mse_loss

def unprepared():
    return nn.Linear(2, 2), (torch.randn(4, 2), torch.randn(4, 2)), nn.MSELoss(), torch.optim.SGD
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "planned_here.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "planned_here", raising=False)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run a command, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@SAMPLED
def test_a_model_is_measured_planned_shown_and_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "memory", "measure", "planned_here:build", "-o", "profile") == 0
    assert re.search(r"quartiles of their runs are [\d.]+% of them apart", capsys.readouterr().out)
    profile = MemoryProfile.load(folder / "profile")
    assert profile.model == "planned_here:build"
    assert profile.provenance["kind"] == "measured"
    assert profile.graph.resident["optimizer"] == 0
    assert profile.eager is not None
    for source in ("profile", "planned_here:build"):
        arguments = ("--budget", "720KiB", "-o", "plan", "--effort", "quick")
        assert run(monkeypatch, "memory", "plan", source, *arguments) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert re.search(r"peak \S+ \w+ of 720 KiB; within", printed)
        assert re.search(r"Plain step: \S+ KiB in \S+ \w+, eager's step as measured\.", printed)
        plan = MemoryPlan.load(folder / "plan")
        assert plan.verify().peak_bytes <= 720 << 10
    assert run(monkeypatch, "show", "plan") == 0
    assert run(monkeypatch, "verify", "plan") == 0
    for name in ("profile", "plan"):
        assert run(monkeypatch, "report", name, "-o", f"{name}.html") == 0
        assert "Time against memory" in (folder / f"{name}.html").read_text()
    assert "720 KiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("measure", "planned_here:none"), "model is 'planned_here:none', needs module:function"),
        (
            ("measure", "./planned_here.py:build"),
            "model is './planned_here.py:build', needs module:function, such as planned_here:build",
        ),
        (
            ("measure", "planned_here.py"),
            "model is 'planned_here.py', needs module:function, such as planned_here:build",
        ),
        (("measure", "planned_here:alone"), "returned 1 values, needs a model and a sample"),
        (("measure", "planned_here:evaluated"), "the model is in evaluation"),
        (("measure", "planned_here:swapped"), "returned Tensor first, needs a torch module"),
        (("measure", "planned_here:functional"), "the loss is a function, needs a torch module"),
        (("measure", "planned_here:unprepared"), "the optimizer is a type, needs one of torch.op"),
        (
            ("plan", "planned_here:pair", "--budget", "much"),
            "budget is 'much', needs a number",
        ),
        (("plan", "step.profile", "--budget", "1MiB"), "there is no file 'step.profile': make a"),
        (
            ("plan", "planned_here.py", "--budget", "1MiB"),
            "planned_here.py is a module: name its function, too, such as planned_here:build",
        ),
        (
            ("plan", "planned_here:pair", "--budget", "90%"),
            "needs bytes: the device's memory is unknown",
        ),
        (("plan", "planned_here:pair", "--budget", "10B"), "no schedule"),
        (
            ("plan", "planned_here:pair", "--budget", "1MiB", "--largest-batch"),
            "planned_here:pair is called with a batch size, needs a function of that",
        ),
        (
            ("plan", "planned_here:sized", "--budget", "1MiB"),
            "is called with no argument, needs a function of that: missing",
        ),
        (
            ("measure", "planned_here:narrow"),
            "check that the model takes the sample (float32 (4, 3))",
        ),
        (("measure", "planned_here:pair", "--offload"), "offload needs a model on an accelerator"),
        (
            ("plan", "planned_here:pair", "--budget", "1MiB", "--offload"),
            "offload needs a model on an accelerator",
        ),
        (("measure", "planned_here:pair", "--device", "none.json"), "none.json: cannot be read"),
    ],
)
def test_wrong_arguments_get_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert run(monkeypatch, "memory", *arguments, "-o", str(folder / "out")) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "out").exists()


@SAMPLED
def test_a_plan_of_least_energy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "watts.json").write_text('{"mm": 40, "konvolution": 5, "default": 10}')
    plan = ("memory", "plan", "planned_here:build", "--effort", "quick", "--budget", "720KiB")
    assert run(monkeypatch, *plan, "--energy", "watts.json", "-o", "plan") == 0
    printed = capsys.readouterr()
    assert re.search(r"energy \S+ J, \S+% over a plain step's as predicted; peak", printed.out)
    assert "no operator of kind konvolution" in " ".join(printed.err.split())
    assert run(monkeypatch, "show", "plan") == 0
    assert re.search(r"energy +\S+ J, ", capsys.readouterr().out)
    (folder / "watts.json").write_text('{"mm": 40}')
    assert run(monkeypatch, *plan, "--energy", "watts.json", "-o", "other") == 2
    assert "watts.json: " in capsys.readouterr().err


@SAMPLED
def test_a_plan_to_start_from_is_of_the_same_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("memory", "plan", "planned_here:build", "--effort", "quick")
    assert run(monkeypatch, *plan, "--budget", "800KiB", "-o", "first") == 0
    again = (*plan, "--budget", "720KiB", "--start", "first")
    assert run(monkeypatch, *again, "-o", "second") == 0
    assert run(monkeypatch, "memory", "measure", "planned_here:pair", "-o", "other") == 0
    other = ("memory", "plan", "other", "--budget", "1MiB", "--start", "first")
    assert run(monkeypatch, *other, "-o", "third") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "first is for another training step: shapes" in message
    assert not (folder / "third").exists()


def test_exact_plans_are_of_exact_profiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rounded(path: str) -> bool:
        operators = MemoryProfile.load(folder / path).graph.operators
        return any(way.reorders for each in operators for way in each.implementations)

    measure = ("memory", "measure", "planned_here:classes")
    assert run(monkeypatch, *measure, "-o", "any") == 0
    assert run(monkeypatch, *measure, "--exact", "-o", "exact") == 0
    assert (rounded("any"), rounded("exact")) == (True, False)
    plan = ("memory", "plan", "--budget", "10MiB", "--effort", "quick", "--exact", "-o", "plan")
    assert run(monkeypatch, *plan, "any") == 2
    assert "measure --exact" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, *plan, "exact") == 0


def test_several_budgets_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "memory", "measure", "planned_here:build", "-o", "profile") == 0
    plan = ("memory", "plan", "profile", "--effort", "quick", "-o", "step.plan")
    assert run(monkeypatch, *plan, "--budget", "10KiB, 720KiB,900KiB,2MiB") == 2
    assert "10KiB: no schedule" in " ".join(capsys.readouterr().err.split())
    plans = [MemoryPlan.load(folder / f"step-{each}.plan") for each in ("720KiB", "900KiB", "2MiB")]
    times = [each.time_us for each in plans]
    assert times == sorted(times, reverse=True)
    assert all(each.verify().peak_bytes <= each.budget_bytes for each in plans)
    assert not (folder / "step.plan").exists()
    assert run(monkeypatch, *plan, "--budget", "1KiB,2KiB") == 2


@SAMPLED
def test_the_largest_batch_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "planned_beside.py").write_text("")
    monkeypatch.delitem(sys.modules, "planned_beside", raising=False)
    plan = ("memory", "plan", "planned_here:beside", "--effort", "quick", "-o", "plan")
    assert run(monkeypatch, *plan, "--budget", "300KiB", "--largest-batch") == 0
    found = re.search(r"Largest batch: (\d+)", capsys.readouterr().out)
    assert found is not None
    batch = int(found[1])
    made = MemoryPlan.load(folder / "plan")
    assert made.profile.inputs[0].shape == (batch, 64)
    assert made.peak_bytes <= 300 << 10
    assert made.peak_bytes > 290 << 10  # one sample more takes at least 1.5 KiB
    assert run(monkeypatch, *plan, "--budget", "30KiB", "--largest-batch") == 2
    assert "a batch of 1 does not fit" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, *plan, "--budget", "1MiB,2MiB", "--largest-batch") == 2
    fixed = ("memory", "plan", "planned_here:fixed", "--effort", "quick", "-o", "plan")
    assert run(monkeypatch, *fixed, "--budget", "300KiB", "--largest-batch") == 2
    assert "inputs of the same shapes for batches of 1 and 2" in " ".join(
        capsys.readouterr().err.split()
    )


def test_conditional_plans_are_of_models(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option had no effect on a profile, and nothing said so."""
    assert run(monkeypatch, "memory", "measure", "planned_here:pair", "-o", "profile") == 0
    plan = ("memory", "plan", "profile", "--budget", "2MiB", "-o", "plan", "--conditional")
    assert run(monkeypatch, *plan) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "profile is a profile already: --conditional is for headrace memory measure" in message


@pytest.mark.parametrize("option", ["ddp", "accumulates"])
def test_plans_for_other_conditions_suit_fit(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plans of the command once were for none of them: `fit(ddp=True)` refused each."""
    plan = ("memory", "plan", "--effort", "quick", "--budget", "2MiB", "-o", "plan", f"--{option}")
    assert run(monkeypatch, *plan, "planned_here:pair") == 0
    assert run(monkeypatch, "memory", "measure", "planned_here:pair", "-o", "profile") == 0
    assert run(monkeypatch, *plan, "profile") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"profile is a profile already: --{option} is for headrace memory measure" in message
    model, sample = torch.nn.Linear(2, 2), torch.randn(4, 2)
    path = folder / "plan"
    fitted = fit(model, sample, "2MiB", plan=path, ddp=option == "ddp", accumulates=option != "ddp")
    assert fitted.plans == [MemoryPlan.load(path)]
    fitted(sample).sum().backward()
    with pytest.raises(MismatchError, match=r"bytes of (buckets|gradients) .* \d+, here 0"):
        fit(model, sample, "2MiB", plan=path)


@SAMPLED
def test_times_by_a_modelled_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "p100.json").write_text(
        '{"name": "a P100", "flops_per_s": 9.3e12, "bytes_per_s": 732e9, "launch_us": 5}'
    )
    device = ("--device", "p100.json")
    assert run(monkeypatch, "memory", "measure", "planned_here:build", *device, "-o", "step") == 0
    profile = MemoryProfile.load(folder / "step")
    assert (profile.device, profile.provenance["kind"]) == ("a P100", "roofline")
    assert profile.eager is None
    times = {way.time_us for each in profile.graph.operators for way in each.implementations}
    assert 5 < min(times - {0}) < max(times) < 10  # the loss between the passes takes none
    plan = ("memory", "plan", "--effort", "quick", "--budget", "300KiB", "-o", "plan", *device)
    assert run(monkeypatch, *plan, "planned_here:sized", "--largest-batch") == 0
    assert MemoryPlan.load(folder / "plan").profile.device == "a P100"
    assert run(monkeypatch, "show", "plan") == 0
    assert "on a P100" in capsys.readouterr().out
    assert run(monkeypatch, *plan, "step") == 2
    same = ("--device", "p100.json", "-o", "p100.json")
    assert run(monkeypatch, "memory", "measure", "planned_here:build", *same) == 2
    assert "is read by this command, too" in " ".join(capsys.readouterr().err.split())


def test_plans_of_several_budgets_do_not_replace_what_they_start_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The budget is in the name of each file, which was not compared with those that are read."""
    (folder / "step-1MiB.plan").write_text("of an earlier search")
    plan = ("memory", "plan", "step", "--budget", "1MiB,2MiB", "-o", "step.plan")
    assert run(monkeypatch, *plan, "--start", "step-1MiB.plan") == 2
    assert "step-1MiB.plan: is read by this command, too" in " ".join(
        capsys.readouterr().err.split()
    )


INTERRUPTED = """
import sys
from headrace.cli.main import main
from headrace.memory.plan import sweep

def make_plan(*args, progress, make=sweep.make_plan, **options):
    def show(state):
        print("a schedule", flush=True)
        progress(state)
    return make(*args, progress=show, **options)

sweep.make_plan = make_plan
sys.argv = ["headrace", *sys.argv[1:]]
main()
"""
"""The command, which prints when the search has a schedule."""


@SAMPLED
def test_an_interrupt_ends_the_search_with_the_best_plan_so_far(folder: Path) -> None:
    graph = random_graph(Random(1), 60, least=60)
    profile_of(graph).save(folder / "profile")
    budget = str(int(0.7 * verify(graph, plain_schedule(graph)).peak_bytes))
    arguments = ("memory", "plan", "profile", "--budget", budget, "--effort", "thorough")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments, "-o", "plan"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "a schedule\n"
        time.sleep(0.5)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert errors == "The search was interrupted: plans are the fastest found until then.\n"
    assert "Wrote plan" in output
    plan = MemoryPlan.load(folder / "plan")
    assert plan.verify().peak_bytes <= int(budget)
    assert plan.provenance["stop"] == "interrupt"
