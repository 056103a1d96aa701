"""``headrace collectives synthesize``: what it is told, and what it does when interrupted."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.collectives.cli import app as collectives
from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.export.within import forbidden
from headrace.collectives.plan import portfolio
from headrace.collectives.plan.generators.taccl import synthesize as pipeline
from headrace.collectives.plan.plan import Candidate, Plan
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.collectives.plan.verify import verify
from headrace.errors import ArtifactError, InputError
from headrace.topology.presets import ndv2_taccl_1mb, ring, uniform

CUSTOM = {"ranks": 4, "slots": 2, "before": [[0, 0, 0], [1, 1, 1]], "after": [[2, 0, 0], [2, 1, 1]]}
COMBINING = {"ranks": 4, "slots": 1, "before": [[0, 0, 0], [1, 0, 0]], "after": [[1, 0, 0]]}
UNEVEN = {
    "collective": "all_to_all_v",
    "counts": [[0, 2, 0, 1], [1, 0, 3, 0], [0, 0, 0, 0], [1, 1, 1, 1]],
}
SKETCH = {
    "nnodes": 2,
    "intranode_sketch": {"strategy": "none"},
    "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
    "symmetry_offsets": [[8, 16]],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ring(4).save("ring.topology")
    for name, content in (("custom", CUSTOM), ("combining", COMBINING), ("uneven", UNEVEN)):
        Path(f"{name}.json").write_text(json.dumps(content))


def synthesize(*arguments: str, network: str = "ring.topology") -> str:
    outcome = CliRunner().invoke(
        collectives.app,
        ["synthesize", network, "-o", "out.plan", "--effort", "quick", *arguments],
        env={"COLUMNS": "200"},
    )
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome.output


@pytest.mark.parametrize(
    ("file", "collective"), [("custom", Collective.CUSTOM), ("uneven", Collective.ALL_TO_ALL_V)]
)
def test_demands_without_a_name_are_planned(file: str, collective: Collective) -> None:
    assert "above the best" in synthesize("--demand", f"{file}.json")
    plan = Plan.load("out.plan")
    assert plan.program.demand.collective is collective
    verify(plan.program)
    assert {row.generator for row in plan.candidates} >= {
        "direct",
        "matching",
        "packing",
        "routing",
    }


def test_a_demand_may_name_a_collective_and_its_root() -> None:
    Path("rooted.json").write_text('{"collective": "broadcast", "ranks": 4, "root": 2}')
    synthesize("--demand", "rooted.json")
    demand = Plan.load("out.plan").program.demand
    assert (demand.collective, demand.root) == (Collective.BROADCAST, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--collective", "custom"], InputError, "needs a demand"),
        (["--collective", "all_to_all_v"], InputError, "--demand FILE.json"),
        (["--collective", "custom", "--demand", "custom.json"], InputError, "leave --collective"),
        (["--demand", "nothere.json"], ProgramError, "nothere.json: cannot be read"),
        (["--root", "2"], InputError, "allreduce has no root"),
        (["--collective", "broadcast", "--root", "4"], ProgramError, "root is 4, needs 0 to 3"),
        (["--size", "2000T"], InputError, "needs at most 1024 TiB"),
    ],
)
def test_contradictions_are_refused(
    arguments: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        synthesize(*arguments)


def test_a_cost_model_that_many_ranks_have_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan was made by the full model, whatever was asked for."""
    monkeypatch.setattr("headrace.collectives.cli.synthesize._LARGE", 3)
    with pytest.raises(InputError, match="leave --cost-model out"):
        synthesize("--cost-model", "executor")
    assert "full model" in synthesize()


def test_what_combines_without_a_name_is_refused_once() -> None:
    with pytest.raises(ProgramError, match="needs a demand that only moves") as found:
        synthesize("--demand", "combining.json")
    assert str(found.value).count("only moves") == 1  # not once for every generator


def test_a_demand_for_other_ranks_is_refused() -> None:
    ring(5).save("five.topology")
    with pytest.raises(ProgramError, match="demand has 4 ranks, topology 'ring-5' has 5"):
        synthesize("--demand", "custom.json", network="five.topology")


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_seeds_that_no_search_takes_are_refused(seed: str) -> None:
    """They used to end in the native module's type error."""
    assert "--seed" in synthesize(f"--seed={seed}")


def test_files_of_other_tools_are_sent_to_the_importer() -> None:
    Path("topo.txt").write_text("GPU0 GPU1")
    with pytest.raises(ArtifactError, match="headrace topology import"):
        synthesize(network="topo.txt")


def test_a_sketch_with_too_many_chunks_is_refused() -> None:
    """It used to run for hours."""
    ndv2_taccl_1mb(2).save("two.topology")
    sketch = {**SKETCH, "hyperparameters": {"input_chunkup": 1_000_000}}
    Path("sketch.json").write_text(json.dumps(sketch))
    with pytest.raises(InputError, match="lower hyperparameters.input_chunkup"):
        synthesize("--collective", "allgather", "--sketch", "sketch.json", network="two.topology")


def test_an_interrupted_sketch_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the stages used to lose what they had."""
    ndv2_taccl_1mb(2).save("two.topology")
    Path("sketch.json").write_text(json.dumps(SKETCH))
    routes = pipeline.route_candidates

    def interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return routes(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(pipeline, "route_candidates", interrupted)
    before = signal.getsignal(signal.SIGINT)
    said = synthesize(
        "--collective", "allgather", "--sketch", "sketch.json", network="two.topology"
    )
    assert "interrupted" in said
    verify(Plan.load("out.plan").program)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("runtime", ["strictest", "msccl"])
def test_a_plan_for_a_runtime_has_a_power_of_two_of_chunks_and_is_exported(runtime: str) -> None:
    """Plans were chosen whose chunks divide few element counts, or that no runtime takes."""
    ring(3).save("three.topology")
    synthesize("--runtime", runtime, "--size", "256K", network="three.topology")
    program = Plan.load("out.plan").program
    assert program.demand.chunks & (program.demand.chunks - 1) == 0
    assert forbidden(program, runtime) == ""


def test_a_program_that_is_forbidden_is_not_chosen() -> None:
    """The next one is, and the candidates say why."""
    first = plan_collective(uniform(4), Collective.ALLREDUCE, 1 << 20)
    digest = first.program.digest
    method = Method(forbidden=lambda program: "too long" if program.digest == digest else "")
    second = plan_collective(uniform(4), Collective.ALLREDUCE, 1 << 20, method=method)
    assert second.program.digest != digest
    assert "forbidden: too long" in [candidate.note for candidate in second.candidates]


def test_an_interrupt_ends_the_search_for_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended that in so many chunks, and the search went on in more."""
    counts: list[int | None] = []

    def interrupted(*arguments: Any, method: Method, **options: Any) -> Plan:
        counts.append(method.chunks)
        plan = plan_collective(*arguments, method=method, **options)
        skipped = Candidate(generator="late", chunks=0, note="interrupted")
        return replace(plan, candidates=(*plan.candidates, skipped))

    monkeypatch.setattr(portfolio, "plan_collective", interrupted)
    uniform(3).save("three.topology")
    said = synthesize("--runtime", "mscclpp", "--size", "256K", network="three.topology")
    assert counts == [1]
    assert "not finished, or skipped: late" in said


def test_an_interrupt_before_a_finer_plan_for_a_runtime_keeps_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was written."""
    plans: list[Plan] = []

    def interrupted(*arguments: Any, **options: Any) -> Plan:
        if plans:
            raise KeyboardInterrupt
        plans.append(plan_collective(*arguments, **options))
        return plans[0]

    monkeypatch.setattr(portfolio, "plan_collective", interrupted)
    uniform(3).save("three.topology")
    synthesize("--runtime", "mscclpp", "--size", "256K", network="three.topology")
    assert Plan.load("out.plan").program.digest == plans[0].program.digest
