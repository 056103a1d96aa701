"""``headrace memory``: a model is measured, planned, shown and verified."""

import re
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.profile import MemoryProfile

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

def fixed(batch):
    return sized(8)

def narrow():
    return nn.Linear(2, 2), torch.randn(4, 3)

def evaluated():
    return nn.Linear(2, 2).eval(), torch.randn(4, 2)

def swapped():
    return torch.randn(4, 2), nn.Linear(2, 2)
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


def test_a_model_is_measured_planned_shown_and_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "memory", "measure", "planned_here:build", "-o", "profile") == 0
    profile = MemoryProfile.load(folder / "profile")
    assert profile.model == "planned_here:build"
    assert profile.provenance["kind"] == "measured"
    assert profile.graph.resident["optimizer"] == 0
    for source in ("profile", "planned_here:build"):
        arguments = ("--budget", "720KiB", "-o", "plan", "--effort", "quick")
        assert run(monkeypatch, "memory", "plan", source, *arguments) == 0
        assert re.search(r"peak \S+ \w+ of 720 KiB; within", capsys.readouterr().out)
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
        (("measure", "planned_here:alone"), "returned 1 values, needs a model and a sample"),
        (("measure", "planned_here:evaluated"), "the model is in evaluation"),
        (("measure", "planned_here:swapped"), "returned Tensor first, needs a torch module"),
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


def test_a_plan_of_least_energy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "watts.json").write_text('{"mm": 40, "konvolution": 5, "default": 10}')
    plan = ("memory", "plan", "planned_here:build", "--effort", "quick", "--budget", "720KiB")
    assert run(monkeypatch, *plan, "--energy", "watts.json", "-o", "plan") == 0
    printed = capsys.readouterr()
    assert re.search(r"energy \S+ J, \S+% over a plain step's; peak", printed.out)
    assert "no operator of kind konvolution" in " ".join(printed.err.split())
    assert run(monkeypatch, "show", "plan") == 0
    assert re.search(r"energy +\S+ J, ", capsys.readouterr().out)
    (folder / "watts.json").write_text('{"mm": 40}')
    assert run(monkeypatch, *plan, "--energy", "watts.json", "-o", "other") == 2
    assert "watts.json: " in capsys.readouterr().err


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


def test_the_largest_batch_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("memory", "plan", "planned_here:sized", "--effort", "quick", "-o", "plan")
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
