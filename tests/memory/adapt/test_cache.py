"""Costs and plans of earlier jobs: used again where they are for the same step, else made anew."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from headrace.artifact import Artifact
from headrace.artifact import load as load_artifact
from headrace.errors import InputError
from headrace.memory import BudgetError, MismatchError, fit
from headrace.memory.adapt import cache
from headrace.memory.adapt.cache import PlanKey, StepCache, conditions
from headrace.memory.measure import timing
from headrace.memory.measure.step import StepConditions, capture_step, unmeasured_profile
from headrace.memory.measure.timing import Cost
from headrace.memory.plan import sweep
from headrace.memory.plan.effort import SolveEffort

CPU = torch.device("cpu")
BUDGET = "64KiB"


def network(width: int = 16) -> nn.Sequential:
    layers = [nn.Linear(width, width) if i % 2 else nn.Tanh() for i in range(5)]
    return nn.Sequential(*layers)


def sample(batch: int = 64, width: int = 16) -> torch.Tensor:
    return torch.ones(batch, width)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts of what the cache saves: operators measured, and plans made."""
    counts = {"measured": 0, "planned": 0}

    def count(where: object, name: str, what: str) -> None:
        function = getattr(where, name)

        def counted(*args: object, **kwargs: object) -> object:
            counts[what] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(where, name, counted)

    count(timing, "_measure", "measured")
    count(sweep, "make_plan", "planned")
    return counts


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name.startswith("headrace")]


def files(folder: Path) -> dict[str, Path]:
    return {path.suffix: path for path in folder.rglob("*") if path.is_file()}


def test_an_equal_step_is_neither_measured_nor_planned_again(
    work: dict[str, int], cache_folder: Path
) -> None:
    first = fit(network(), sample(), BUDGET)
    assert work["measured"] > 0
    assert work["planned"] == 1
    made = dict(work)
    again = fit(network(), sample(), BUDGET)
    assert work == made
    assert again.plans == first.plans
    assert again.plans[0].digest == first.plans[0].digest
    again(sample()).sum().backward()
    # other conditions of the search use the costs alone
    for changes in ({"seed": 1}, {"budget": "70KiB"}, {"effort": "normal"}):
        fit(network(), sample(), **{"budget": BUDGET, **changes})  # pyright: ignore[reportArgumentType]
        assert work["measured"] == made["measured"]
    assert work["planned"] == 4
    # another step uses neither
    for changed in (fit(network(), sample(32), BUDGET), fit(network(24), sample(64, 24), "96KiB")):
        assert changed.plans
    assert work["measured"] > made["measured"]
    assert work["planned"] == 6
    momentum = torch.optim.SGD((model := network()).parameters(), lr=0.1, momentum=0.9)
    assert (
        "optimizer"
        in fit(model, sample(), BUDGET, optimizer=momentum).plans[0].profile.graph.resident
    )
    assert set(files(cache_folder)) == {".costs", ".plan"}


def test_only_budgets_without_a_plan_are_planned(work: dict[str, int], cache_folder: Path) -> None:
    one = fit(network(), sample(), BUDGET)
    several = fit(network(), sample(), ["96KiB", BUDGET])
    assert work["planned"] == 2
    assert several.budgets == (64 << 10, 96 << 10)
    assert one.plans[0] in several.plans
    several.set_budget(BUDGET)
    several(sample()).sum().backward()
    with pytest.raises(BudgetError, match="2 budgets and 1 plan"):
        fit(network(), sample(), [BUDGET, "96KiB"], plan=["one.plan"])


def test_plans_of_least_energy_are_kept_by_their_watts(
    work: dict[str, int], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watts = {"mm": 40, "default": 10}
    fit(network(), sample(), BUDGET)
    (plan,) = fit(network(), sample(), BUDGET, watts=watts).plans
    assert plan.settings["watts"] == watts
    assert plan.energy_uj is not None
    assert work["planned"] == 2
    assert fit(network(), sample(), BUDGET, watts=watts).plans == [plan]
    assert fit(network(), sample(), BUDGET).plans[0].energy_uj is None
    assert work["planned"] == 2
    fit(network(), sample(), BUDGET, watts={**watts, "mm": 20})
    assert work["planned"] == 3
    assert not warnings_of(caplog)
    with pytest.raises(InputError, match="watts: .*needs an entry 'default'"):
        fit(network(), sample(), BUDGET, watts={"mm": 40})


def test_without_the_cache_nothing_is_read_or_kept(
    work: dict[str, int], cache_folder: Path
) -> None:
    fit(network(), sample(), BUDGET, cache=False)
    assert not files(cache_folder)
    fit(network(), sample(), BUDGET)
    before = work["measured"]
    fit(network(), sample(), BUDGET, cache=False)
    assert work["measured"] > before
    assert work["planned"] == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "altered", "other"])
def test_a_damaged_or_altered_file_is_made_again(
    damage: str, work: dict[str, int], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(network(), sample(), BUDGET)
    made = dict(work)
    for path in files(cache_folder).values():
        path.write_bytes(damaged(path, damage))
    (plan,) = fit(network(), sample(), BUDGET).plans
    plan.verify()
    assert sum("ignored a file of plans" in each for each in warnings_of(caplog)) == 1
    assert any("ignored a file of costs" in each for each in warnings_of(caplog))
    assert work == {name: 2 * count for name, count in made.items()}
    caplog.clear()
    fit(network(), sample(), BUDGET)  # the new files are whole
    assert work == {name: 2 * count for name, count in made.items()}
    assert not warnings_of(caplog)


def damaged(path: Path, damage: str) -> bytes:
    content = path.read_bytes()
    if damage == "altered":  # consistent in itself, and wrong
        found = load_artifact(path)
        head = dict(found.head)
        if path.suffix == ".plan":
            head["peak_bytes"] += 64
        else:
            head["operators"] = head["operators"][:-1]
        return Artifact(
            kind=found.kind,
            schema=found.schema,
            head=head,
            tables=found.tables,
            provenance=found.provenance,
        ).to_bytes()
    middle = len(content) // 2
    return {
        "cut": content[:middle],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
        "text": b"{}",
        "other": Artifact(kind="other", schema=1, head={}).to_bytes(),
    }[damage]


def test_a_plan_for_another_step_in_the_place_of_one_is_refused(
    cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(network(), sample(32), BUDGET)
    other = files(cache_folder)[".plan"].read_bytes()
    fit(network(), sample(), BUDGET)
    for path in cache_folder.rglob("*.plan"):
        path.write_bytes(other)
    (plan,) = fit(network(), sample(), BUDGET).plans
    assert plan.profile.inputs[0].shape == (64, 16)
    assert any("for another training step: shapes" in each for each in warnings_of(caplog))


def test_a_plan_given_is_used_or_refused_with_what_differs(
    tmp_path: Path, work: dict[str, int]
) -> None:
    (plan,) = fit(network(), sample(), BUDGET, cache=False).plans
    path = tmp_path / "step.plan"
    plan.save(path)
    made = dict(work)
    model = network()
    fitted = fit(model, sample(), BUDGET, plan=path)
    assert fitted.plans == [plan]
    assert work == made
    fitted(sample()).sum().backward()
    with pytest.raises(
        MismatchError, match=r"plan is .* shapes \[64, 16\] float32, here \[32, 16\]"
    ):
        fit(model, sample(32), BUDGET, plan=path)
    with pytest.raises(MismatchError, match=r"model Sequential \(\w+\), here Sequential \("):
        fit(nn.Sequential(nn.Linear(16, 16)), sample(), BUDGET, plan=path)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(MismatchError, match=r"bytes of optimizer \(`optimizer=`\) 0, here \d\d"):
        fit(model, sample(), BUDGET, plan=path, optimizer=adam)
    with pytest.raises(BudgetError, match="the plan needs"):
        fit(model, sample(), plan.peak_bytes - 1, plan=path)
    replace(plan, profile=replace(plan.profile, device="NVIDIA H200")).save(path)
    with pytest.raises(MismatchError, match="device NVIDIA H200, here cpu, "):
        fit(model, sample(), BUDGET, plan=path)


def test_costs_of_two_processes_are_both_kept(cache_folder: Path) -> None:
    known = conditions(CPU)
    one, other = StepCache(cache_folder), StepCache(cache_folder)
    one.save_costs(known, {"a": Cost(1.0, 0)})
    other.save_costs(known, {"b": Cost(2.0, 64)})
    assert one.costs(known) == {"a": Cost(1.0, 0), "b": Cost(2.0, 64)}
    assert one.costs({**known, "torch": "0"}) == {}


def test_costs_of_an_earlier_way_to_measure_are_not_used(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workspaces of `aten.copy` were measured too small, and kept under the version alone: a mended
    # program of the same version went on planning with them, and its steps exceeded their budgets.
    store = StepCache(cache_folder)
    monkeypatch.setattr(cache, "MEASUREMENT", cache.MEASUREMENT - 1)
    store.save_costs(conditions(CPU), {"a": Cost(1.0, 0)})
    monkeypatch.undo()
    assert store.costs(conditions(CPU)) == {}


PRECISIONS = """
import torch
from headrace.memory.adapt.cache import conditions
cpu = torch.device("cpu")
plain = conditions(cpu)
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
assert conditions(cpu) != plain
"""


def test_precisions_of_float32_may_be_set_by_the_newer_attributes_of_torch() -> None:
    """`fit` raised torch's error about a mix of settings, in a Trainer with tf32=True, too."""
    subprocess.run([sys.executable, "-c", PRECISIONS], check=True)  # settings are a process's


def test_no_folder_and_one_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known: Mapping[str, str] = {}
    nowhere = StepCache(None)
    nowhere.save_costs(known, {"a": Cost(1.0, 0)})
    assert nowhere.costs(known) == {}
    (tmp_path / "file").write_text("")
    StepCache(tmp_path / "file").save_costs(known, {"a": Cost(1.0, 0)})
    assert "cannot be cached" in caplog.text


WRITER = """
import sys
from pathlib import Path
from headrace.memory.adapt.cache import StepCache
from headrace.memory.measure.timing import Cost
store = StepCache(Path(sys.argv[1]))
print("ready", flush=True)
for turn in range(1, 1_000_000):
    store.save_costs({}, {f"operator {i}": Cost(float(turn), turn) for i in range(20_000)})
"""


@pytest.mark.slow
def test_a_kill_while_writing_leaves_a_whole_file(cache_folder: Path) -> None:
    store = StepCache(cache_folder)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(cache_folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while not files(cache_folder).get(".costs") and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # somewhere in the middle of a turn
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    costs = store.costs({})
    assert len(costs) == 20_000
    assert len({each.workspace_bytes for each in costs.values()}) == 1


def test_a_key_depends_on_what_changes_the_plan() -> None:
    model = network()
    step = unmeasured_profile(
        model, capture_step(model, sample(), StepConditions()), StepConditions()
    )
    key = PlanKey(step=step, conditions={}, budget_bytes=1, effort=SolveEffort.QUICK, seed=0)
    others = [
        replace(key, conditions={"torch": "1"}),
        replace(key, budget_bytes=2),
        replace(key, effort=SolveEffort.NORMAL),
        replace(key, seed=1),
        replace(key, watts={"default": 1.0}),
        replace(key, step=replace(step, device="another")),
        replace(key, step=replace(step, model_digest="another")),
    ]
    assert len({key.name, *(each.name for each in others)}) == 8
    assert replace(key, step=replace(step, model="another name")).name == key.name
