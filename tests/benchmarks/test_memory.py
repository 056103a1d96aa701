"""The benchmark of memory: its networks are the papers', and its instruments count exactly."""

import io
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.harness import Report
from benchmarks.kept import CommittedRows
from benchmarks.memory import gpu, implementations, planning
from benchmarks.memory.ablations import ALGORITHM, KINDS, kinds_of
from benchmarks.memory.knapsack import KNAPSACKS, fastest, knapsack_schedules
from benchmarks.memory.models import covered_share
from benchmarks.memory.networks import GPT, MobileNetV2
from benchmarks.memory.papers import BUDGETS_GB, TO_2_PERCENT, TO_5_PERCENT, solved
from benchmarks.memory.planning import FULL, NOOP, OVERHEAD, Steps, plan_left
from benchmarks.memory.precision import SQUEEZENET
from benchmarks.memory.reference import Reference
from benchmarks.memory.rivals import BY_BLOCK, CHECKPOINTS, EAGER, SPLIT_LOSS, Rival, stock
from benchmarks.memory.step import (
    MIB,
    Step,
    Times,
    allocations,
    gradients,
    paired_times,
    relative_error,
    step_allocations,
)
from benchmarks.memory.workloads import RESNET, WORKLOADS, Workload, pixels, text, token_loss
from benchmarks.resident import resident_growth
from headrace.memory.graph import Graph, Implementation, Operator, Storage
from headrace.memory.plan.verify import verify
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import plain_schedule

SAMPLED = pytest.mark.sampled(2)

PARAMETERS = {
    "resnet50": 25_557_032,
    "googlenet": 6_624_904,
    "unet": 31_037_698,
    "vgg16": 138_357_544,
    "mobilenet_v2": 3_504_872,
    "unet3d": 4_081_267,
    "gpt12": 124_439_808,
    "gpt48": 1_557_611_200,
    "densenet121": 7_978_856,
    "vit_small": 22_050_664,
    "squeezenet1_1": 1_235_496,
}


PUBLISHED = {**WORKLOADS, "squeezenet1_1": SQUEEZENET}


@SAMPLED
@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_numbers_of_parameters(name: str) -> None:
    workload = PUBLISHED[name]
    with torch.device("meta"):
        model, inputs, targets = workload.make(1)
        loss = workload.loss(model(inputs), targets)
    assert loss.shape == ()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@SAMPLED
@pytest.mark.parametrize("name", ["vgg16", "unet"])
def test_plain_steps_need_about_what_the_paper_measured(name: str) -> None:
    steps = Steps.of(WORKLOADS[name])
    assert steps.plain_bytes / 1e9 == pytest.approx(WORKLOADS[name].eager_gb, rel=0.15)
    ways = {
        kind: [len(op.implementations) for op in g.operators] for kind, g in steps.graphs.items()
    }
    assert max(ways[NOOP]) == 1
    assert len(ways[NOOP]) == len(ways[FULL])
    assert max(ways[FULL]) > 1


@SAMPLED
def test_what_may_be_computed_again_is_covered() -> None:
    graph = Steps.of(WORKLOADS["unet"]).graphs[NOOP]
    assert covered_share(graph) == pytest.approx(1.0)
    once = tuple(replace(each, again=False) for each in graph.operators)
    assert covered_share(replace(graph, operators=once)) == 0.0


def test_allocations_are_counted_to_the_byte() -> None:
    held = [torch.ones(1000)]

    def call() -> Tensor:
        first = torch.ones(10_000)
        second = torch.ones(20_000)
        del first
        held[0] = torch.ones(100)
        return second

    found = allocations(call)
    assert (found.peak_bytes, found.kept_bytes, found.count) == (120_000, 400, 3)


def small_step() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10))

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    return Step(
        model=model, forward=forward, inputs=torch.randn(64, 256), targets=torch.randint(10, (64,))
    )


def test_a_step_counts_its_gradients_and_repeats() -> None:
    step = small_step()
    gradients(step)
    found = step_allocations(step)
    assert found.kept_bytes == sum(4 * part.numel() for part in step.model.parameters())
    assert found.peak_bytes > found.kept_bytes
    assert step_allocations(step) == found
    accumulated = step_allocations(step, accumulate=True)
    assert accumulated.kept_bytes == 0
    assert 0 < accumulated.peak_bytes < found.peak_bytes
    assert relative_error(gradients(step), gradients(step)) == 0.0
    assert relative_error(gradients(replace(step, seed=2)), gradients(step)) > 0.1


def test_resident_memory_grows_by_what_is_touched() -> None:
    growth = resident_growth(lambda: torch.ones(16 * 2**20))
    assert growth == pytest.approx(64 * 2**20, rel=0.1)


def test_times_are_paired() -> None:
    step = small_step()
    gradients(step)
    times = paired_times({"one": step, "other": step}, 5)
    assert all(len(each.seconds) == 5 and min(each.seconds) > 0 for each in times.values())
    one, other = (Times(seconds=each, elapsed=1.0) for each in ((1.0, 4.0, 9.0), (2.0, 2.0, 3.0)))
    assert one.over(other) == 2.0  # of 0.5, 2 and 3; the medians are 4 and 2


@SAMPLED
def test_each_implementation_has_a_kind() -> None:
    graph = Steps.of(WORKLOADS["unet"]).graphs[FULL]
    found = {
        kind
        for each in graph.operators
        for way in each.implementations[1:]
        for kind in kinds_of(way)
    }
    assert found == {*KINDS["all"]} - {ALGORITHM}  # of which a roofline has one


def test_implementations_are_beside_the_first_ones() -> None:
    def relu(number: int, first_us: float) -> Operator:
        first = Implementation(
            name="default", time_us=first_us, workspace_bytes=0, reads=(), creates=(0,)
        )
        signs = replace(
            first, name="with signs", time_us=6.0, workspace_bytes=MIB, creates=(0, number)
        )
        return Operator(
            name=f"relu_{number}", module="", again=True, implementations=(first, signs)
        )

    storages = tuple(Storage(name=f"{n}", nbytes=n * MIB) for n in (4, 1, 2))
    graph = Graph(
        storages=storages,
        operators=(relu(1, 2.0), relu(2, 3.0)),
        forward_count=2,
        outputs=frozenset(),
        results=frozenset(),
    )
    (row,) = implementations.rows_of(graph)
    assert row == {
        "operators": "relu",
        "implementation": "with signs",
        "count": 2,
        "first_ms": 0.005,
        "over_first": 2.5,
        "largest": 3.0,
        "first_workspace_mib": 0.0,
        "workspace_mib": 1.0,
        "first_created_mib": 4.0,
        "created_mib": 6.0,
    }


@SAMPLED
def test_the_section_of_a_gpu_measures_and_judges(tmp_path: Path) -> None:
    """On the CPU, by its instruments, a network so small that its program is solved exactly."""

    def network() -> nn.Module:
        layers = [each for _ in range(3) for each in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def peak_bytes(step: Step) -> int:
        held = (*step.model.parameters(), step.inputs, step.targets)
        return sum(each.nbytes for each in held) + step_allocations(step).peak_bytes

    def seconds(run: Callable[[], object]) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    caps: list[int] = []

    def capped(most_bytes: int) -> AbstractContextManager[None]:
        caps.append(most_bytes)
        return nullcontext()

    tools = gpu.Instruments(peak_bytes=peak_bytes, seconds=seconds, capped=capped)
    workload = replace(
        WORKLOADS["vgg16"], network=network, sample=pixels(32, 32, channels=8, classes=8)
    )
    cpu = torch.device("cpu")
    rows = gpu.rows_of(workload, cpu, quick=True, batch=4, tools=tools, profiles=tmp_path)
    at_tenth, at_third = rows["10%"], rows["a third"]
    assert at_third["budget_gb"] == pytest.approx(at_third["eager_gb"] / 3, rel=1e-3)
    assert at_tenth["predicted_overhead"] <= OVERHEAD
    assert caps == [int(1.1e9 * at_tenth["budget_gb"])]
    assert at_tenth["peak_of_predicted"] == pytest.approx(1, rel=0.01)
    assert at_tenth["peak_of_budget"] <= 1
    assert at_tenth["within_cap"]
    assert at_third["least_gb"] > at_third["budget_gb"]  # one convolution needs that
    assert {"none", "intermediate-activated", "all"} <= rows["kinds"].keys()
    assert "convolution" not in rows["kinds"]
    (profile,) = map(MemoryProfile.load, tmp_path.iterdir())
    assert profile.provenance["kind"] == "measured"
    out = io.StringIO()
    report = Report(
        "memory", bars=gpu.bars(), folder=tmp_path / "results", console=Console(file=out)
    )
    with report:
        gpu.judge(report, list(rows.values()))
    assert f"BAR {gpu.CAPPED} 0 required <=0 ok" in out.getvalue()
    assert f"BAR {gpu.THIRD} unmeasured" in out.getvalue()
    assert out.getvalue().count("unmeasured") == 1


@pytest.mark.slow
def test_the_memory_of_resnet50_is_that_of_the_issue() -> None:
    """270.5 MiB above parameters and inputs, of which 89.8 are gradients; 179.5 by checkpoints."""
    for rival, peak in ((EAGER, 270.5), (BY_BLOCK, 179.5)):
        step = rival.step(RESNET)
        step.run()
        step.clear()
        found = step_allocations(step)
        assert found.peak_bytes / MIB == pytest.approx(peak, abs=0.05)
        assert found.kept_bytes / MIB == pytest.approx(89.8, abs=0.05)


TINY = Workload(
    name="tiny",
    network=lambda: GPT(4, width=64, vocabulary=100, context=32, dropout=0.1),
    sample=text(32, 100),
    batch=2,
    loss=token_loss,
)


@SAMPLED
@pytest.mark.parametrize(
    "rival", [*CHECKPOINTS, SPLIT_LOSS, *stock((1.0,))], ids=lambda rival: rival.name
)
def test_rivals_make_the_gradients_of_eager(rival: Rival) -> None:
    reference = Reference.of(TINY)
    verdict = reference.judge(rival.step(TINY))
    assert verdict.word in ("bit-equal", "to rounding")
    assert verdict.statistics == "none"


@SAMPLED
def test_a_budget_below_one_makes_wrong_gradients_with_dropout() -> None:
    """As torch 2.15 does: the masks of the second run are others."""
    (rival,) = stock((0.0,))
    verdict = Reference.of(TINY).judge(rival.step(TINY))
    assert verdict.word == "WRONG"
    assert verdict.gradient_error > 0.1


def test_checkpoints_change_running_statistics_twice() -> None:
    small = Workload(
        name="small",
        network=lambda: MobileNetV2(10),
        sample=pixels(32, 32, classes=10),
        batch=2,
    )
    reference = Reference.of(small)
    assert reference.judge(EAGER.step(small)).statistics == "same"
    assert reference.judge(BY_BLOCK.step(small)).statistics == "differ"


def chain(*layers: tuple[int, float]) -> Graph:
    """Return layers (size in bytes, time) in a row, and a backward pass that reads each output."""

    def run(name: str, time_us: float, reads: tuple[int, ...], creates: int) -> Operator:
        way = Implementation(
            name="default", time_us=time_us, workspace_bytes=0, reads=reads, creates=(creates,)
        )
        return Operator(name=name, module="", again=name == "forward", implementations=(way,))

    count = len(layers)
    forward = [
        run("forward", time_us, (at - 1,) if at else (), at)
        for at, (_, time_us) in enumerate(layers)
    ]
    backward = [
        run(
            "backward",
            1.0,
            (at, 2 * count - at - 2) if at < count - 1 else (at,),
            2 * count - at - 1,
        )
        for at in reversed(range(count))
    ]
    sizes = [size for size, _ in layers] + [1] * count
    return Graph(
        storages=tuple(Storage(name=f"{at}", nbytes=size) for at, size in enumerate(sizes)),
        operators=(*forward, *backward),
        forward_count=count,
        outputs=frozenset(),
        results=frozenset({2 * count - 1}),
    )


@pytest.mark.parametrize("name", KNAPSACKS)
def test_stocks_solvers_save_what_is_slow_for_its_size(name: str) -> None:
    """Of three layers of 100 bytes the middle one is cheap: it alone is computed again."""
    graph = chain((100, 50.0), (100, 1.0), (100, 50.0))
    plain = verify(graph, plain_schedule(graph))
    found = knapsack_schedules(graph, KNAPSACKS[name])
    assert [each.time_us for each in found] == sorted(each.time_us for each in found)
    assert found[0].time_us == plain.time_us
    assert fastest(found, plain.peak_bytes) == found[0].schedule
    saved = next(each for each in found if each.time_us == plain.time_us + 1.0)
    assert [each.operator for each in saved.schedule.steps].count(1) == 2
    assert fastest(found, 0) is None


def test_papers_tables_have_the_cells_that_the_issue_counts() -> None:
    assert (len(solved(NOOP)), len(solved(FULL))) == (27, 29)
    for table in (TO_5_PERCENT, TO_2_PERCENT):
        assert {len(times) for times in table.values()} == {len(BUDGETS_GB)}


def planned_rows() -> list[dict[str, object]]:
    """Return rows as of earlier versions, all that Table 4.4 solves, and one network's at 10%."""
    cells: list[dict[str, object]] = [
        {
            "network": network,
            "plans": plans,
            "budget_gb": gb,
            "overhead": 0.1,
            "gap": 0.01,
            "sqrt": 0.2,
            "checkmate_d": None,
            "beaten": False,
        }
        for plans in (NOOP, FULL)
        for network, gb in sorted(solved(plans))
    ]
    return [*cells, {"network": "unet", "ratio": 1.3, "of_plain": 0.3, "papers_of_plain": 0.36}]


def judged(folder: Path, rows: list[dict[str, object]], *, quick: bool = False) -> dict[str, str]:
    """Return the bars' figures by name."""
    out = io.StringIO()
    console = Console(file=out, width=200)
    with Report("memory", bars=planning.bars(), folder=folder, console=console) as report:
        planning.judge(report, rows, quick=quick)
    lines = [line.split() for line in out.getvalue().splitlines() if line.startswith("BAR")]
    return {line[1]: line[2] for line in lines}


def test_rows_of_earlier_versions_are_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, planned_rows())
    assert found[planning.SLOWER] == found[planning.RESIDENT] == "unmeasured"
    assert found[planning.NOOP_WITHIN] == found[planning.FULL_WITHIN] == "1"
    assert found[planning.FULL_WORST] == "0.01"
    counts = planning.rivals_row(planned_rows(), "stock_dp")
    assert (counts["cells"], counts["not_made"], counts["compared"]) == (56, 56, 0)
    counts = planning.rivals_row(planned_rows(), "checkmate_d")
    assert (counts["without_a_schedule"], counts["not_made"], counts["compared"]) == (0, 56, 0)
    rows = [{**row, "checkmate_by": "none"} for row in planned_rows()]
    assert planning.rivals_row(rows, "checkmate_d")["without_a_schedule"] == 56


def test_a_cell_without_a_plan_is_judged_against_headrace(tmp_path: Path) -> None:
    """Of two cells without a plan, Table 4.4 solves one; of two rivals, one is faster."""
    rows = planned_rows()
    rows[27] |= {"gap": None, "overhead": None, "beaten": True}
    rows[30] |= {"beaten": True}
    rows.append({"network": "vgg16", "plans": FULL, "budget_gb": 5, "gap": None, "beaten": False})
    found = judged(tmp_path, rows)
    assert found[planning.SLOWER] == "2"
    assert found[planning.NOOP_WITHIN] == "1"
    assert found[planning.FULL_WITHIN] == "0.96552"
    assert found[planning.FULL_WORST] == "1"
    assert planning.rivals_row(rows, "sqrt")["faster"] == 1


def test_a_cell_that_was_not_planned_counts_in_a_full_run_alone(tmp_path: Path) -> None:
    stock = dict.fromkeys(planning.STOCK, 0.3)
    rows = [{**row, **stock, "memory_gb": 2.5} for row in planned_rows()[1:]]
    assert judged(tmp_path / "full", rows)[planning.SLOWER] == "1"
    found = judged(tmp_path / "quick", rows, quick=True)
    assert (found[planning.SLOWER], found[planning.RESIDENT]) == ("0", "2.5")


def test_planned_cells_stand_in_for_those_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "planned.jsonl"

    def row(_steps: object, **options: object) -> dict[str, object]:
        return {"options": str(options)}

    monkeypatch.setattr(planning, "_cell", row)
    monkeypatch.setattr(planning, "_memory", row)
    monkeypatch.setattr(planning.Steps, "of", lambda workload: workload)
    first = CommittedRows(path, "planning", lambda _: "limits")
    stops = iter([False] * 5 + [True] * 1000)
    cells = 5 * (2 * 6 + 1)
    assert plan_left(first, quick=False, until=lambda: next(stops)) == cells - 5
    with path.open("a") as file:
        file.write('{"key": "half a ro')  # a kill
    second = CommittedRows(path, "planning", lambda _: "limits")
    assert second.rows == first.rows
    assert plan_left(second, quick=False) == 0
    assert len(second.rows) == cells
    assert f"{cells - 5} cells planned in this run, 5 kept in git" in second.note
    assert len(path.read_text().splitlines()) == cells
    assert CommittedRows(path, "planning", lambda _: "limits").rows == second.rows
    assert not CommittedRows(path, "planning", lambda _: "other limits").rows
