"""Limits of real runtimes: met by cutting and numbering threadblocks, or named.

Files were written that runtimes break on: threadblocks of more steps than a default build takes,
and waits for threadblocks above 127, kept in a signed byte there.
"""

import json
from dataclasses import replace

import pytest

from benchmarks.synthesis.mscclpp_threads import Plan
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.export import msccl_xml, mscclpp_json, mscclpp_read
from headrace.collectives.export.algorithm import Algorithm
from headrace.collectives.export.prove import examine
from headrace.collectives.export.runtimes import (
    JSON,
    RUNTIMES,
    STRICTEST,
    XML,
    oversubscription,
    runtime_of,
    selection,
)
from headrace.collectives.export.threadblocks import Target, renumbered
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Program, Schedule, Transfer
from headrace.errors import VerificationError
from tests.collectives.export.machine import Machine
from tests.collectives.export.operations import Operations
from tests.collectives.export.programs import lowered, random_program, template_programs
from tests.collectives.export.test_foreign import algo, step


def pipeline(chunks: int) -> Program:
    demand = Demand(collective=Collective.BROADCAST, ranks=2, chunks=chunks)
    return lower(Schedule.of(demand, [Transfer(0, 1, k, k) for k in range(chunks)]))


def lengths(algorithm: Algorithm) -> list[int]:
    return [len(tb.steps) for gpu in algorithm.gpus for tb in gpu.threadblocks]


@pytest.mark.parametrize(
    ("runtime", "blocks"), [("msccl", 1), ("msccl-executor-nccl", 4), (STRICTEST, 4)]
)
def test_threadblocks_are_cut_to_what_the_runtime_takes(runtime: str, blocks: int) -> None:
    text = msccl_xml.export(pipeline(200), Target(in_place=True, runtime=runtime))
    algorithm, _ = msccl_xml.read(text)
    assert [len(gpu.threadblocks) for gpu in algorithm.gpus] == [blocks, blocks]
    assert max(lengths(algorithm)) <= runtime_of(runtime, XML).steps
    assert algorithm.channels == blocks
    assert Machine(text).misbehaves(3) == ""


def test_what_fits_is_not_cut() -> None:
    for _, program in template_programs(4):
        target = Target(runtime="msccl-executor-nccl")
        assert msccl_xml.export(program, target) == msccl_xml.write(lowered(program, target))


@pytest.mark.parametrize("steps", [3, 7])
def test_cut_threadblocks_do_the_same_in_any_order(steps: int) -> None:
    runtime = replace(runtime_of(STRICTEST, XML), steps=steps)
    cut = 0
    for seed in range(0, 40, 3):
        program = random_program(seed)
        whole = lowered(program, Target())
        algorithm = msccl_xml.fitted_algorithm(program, Target(), runtime)
        cut += len(lengths(algorithm)) > len(lengths(whole))
        verdict = examine(algorithm)
        assert not [f for f in verdict.findings if f.fatal or f.rule == "buffering"], seed
        assert Machine(msccl_xml.write(algorithm)).misbehaves(3, program.demand.root) == "", seed
    assert cut > 3


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_cut_mscclpp_threadblocks_do_the_same_thread_by_thread(seed: int) -> None:
    runtime = replace(runtime_of(STRICTEST, JSON), steps=16)
    program = random_program(seed)
    text = mscclpp_json.fitted_text(program, Target(instances=1 + seed % 2), runtime)
    assert not [f for f in mscclpp_read.verify_text(text).findings if f.fatal]
    assert Operations(text).misbehaves(2, program.demand.root) == ""
    assert Plan(text, program.demand.root).misbehaves(2) == ""


def test_operations_are_cut_to_what_mscclpp_takes() -> None:
    plan = json.loads(mscclpp_json.export(pipeline(60)))
    blocks = [block for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    assert 50 < max(len(block["ops"]) for block in blocks) <= 64


def test_what_has_to_hold_chunks_cannot_be_cut_and_names_the_limit() -> None:
    with pytest.raises(VerificationError, match=r"steps: refused by .*executor-nccl \(at most 64"):
        msccl_xml.export(pipeline(100), Target(in_place=True, buffered=True))


def test_more_channels_than_there_are_name_the_limit() -> None:
    with pytest.raises(VerificationError, match="nchannels is 48, needs 1 to 32"):
        msccl_xml.export(pipeline(3000), Target(in_place=True))


def test_runtimes_read_their_format() -> None:
    with pytest.raises(ProgramError, match="mscclpp reads mscclpp-json, not msccl-xml"):
        msccl_xml.export(pipeline(2), Target(runtime="mscclpp"))
    with pytest.raises(ProgramError, match="runtime is 'fast', needs one of strictest, msccl,"):
        mscclpp_json.export(pipeline(2), Target(runtime="fast"))
    for runtime in RUNTIMES.values():
        assert runtime_of(runtime.name, runtime.form) is runtime


def ring_reduce_scatter() -> Program:
    return lower(ring(Demand(collective=Collective.REDUCE_SCATTER, ranks=3)))


def test_a_file_without_a_limit_of_sizes_states_the_largest() -> None:
    """microsoft/msccl takes a file for sizes below its maxBytes: at 0 it never took any."""
    text = msccl_xml.export(pipeline(2), Target(runtime="msccl"))
    assert f'maxBytes="{(1 << 63) - 1}"' in text
    assert msccl_xml.read(text)[0].max_bytes == 0


@pytest.mark.parametrize(
    ("runtime", "name", "refused_by"),
    [
        ("msccl", "reduce_scatter", "msccl-executor-nccl"),
        ("msccl-executor-nccl", "reducescatter", "msccl"),
        (STRICTEST, "reducescatter", "msccl"),
    ],
)
def test_a_collective_has_the_name_that_the_runtime_knows(
    runtime: str, name: str, refused_by: str
) -> None:
    """microsoft/msccl, and files of TACCL and msccl-tools, have another for reduce-scatter."""
    text = msccl_xml.export(ring_reduce_scatter(), Target(runtime=runtime))
    assert f'coll="{name}"' in text
    verdict = msccl_xml.verify_text(text)
    assert verdict.demand is not None
    assert verdict.demand.collective is Collective.REDUCE_SCATTER
    assert verdict.proven
    (finding,) = verdict.findings
    assert finding.message == f"coll is '{name}': refused by {refused_by}"


def test_a_runtime_without_the_collective_is_named() -> None:
    gather = lower(direct(Demand(collective=Collective.GATHER, ranks=3)))
    assert msccl_xml.export(gather, Target(runtime="msccl-executor-nccl"))
    with pytest.raises(ProgramError, match="runtime msccl has no gather, needs one of allreduce"):
        msccl_xml.export(gather, Target(runtime="msccl"))


def copies(blocks: int, waiting: int, on: int) -> str:
    """One GPU with a threadblock for every chunk, one of which waits for another."""
    body = [f'<gpu id="0" i_chunks="{blocks}" o_chunks="{blocks}" s_chunks="0">']
    for k in range(blocks):
        dep = f"{on}:0" if k == waiting else "-1:-1"
        one = step(0, "cpy", f"i:{k}", f"o:{k}", dep=dep, has=int(k == on))
        body.append(f'<tb id="{k}" send="-1" recv="-1" chan="0">{one}</tb>')
    return algo("allreduce", 1, blocks, [*body, "</gpu>"], (0, 1))


def test_a_wait_for_a_threadblock_above_127_is_an_error() -> None:
    verdict = msccl_xml.verify_text(copies(130, waiting=5, on=127))
    assert verdict.findings == ()
    verdict = msccl_xml.verify_text(copies(130, waiting=5, on=128))
    (finding,) = verdict.findings
    assert finding.fatal
    assert (finding.rule, finding.threadblock, finding.step) == ("limit", 5, 0)
    assert "waits for threadblock 128, kept in a signed byte" in finding.message


def test_threadblocks_that_are_waited_for_come_first_where_they_have_to() -> None:
    algorithm, _ = msccl_xml.read(copies(130, waiting=5, on=128))
    assert renumbered(algorithm, 127) != algorithm
    assert examine(renumbered(algorithm, 127)).findings == ()
    fits, _ = msccl_xml.read(copies(130, waiting=5, on=127))
    assert renumbered(fits, 127) == fits
    for _, program in list(template_programs(4))[::5]:
        for awaited in (0, 1, 3):
            algorithm = renumbered(lowered(program, Target(instances=2)), awaited)
            assert examine(algorithm).proven
            assert Machine(msccl_xml.write(algorithm)).misbehaves(2, program.demand.root) == ""


def test_runtimes_that_refuse_a_file_are_named_one_line_a_rule() -> None:
    text = msccl_xml.write(lowered(pipeline(100), Target(in_place=True)))
    (finding,) = msccl_xml.verify_text(text).findings
    assert str(finding) == (
        "warning (limit): gpu 0, threadblock 0: has 100 steps: refused by msccl-executor-nccl "
        "(at most 64)"
    )
    (finding,) = msccl_xml.verify_text(copies(220, waiting=-1, on=-1)).findings
    assert "has 220 threadblocks: refused by msccl (at most 216)" in str(finding)


def test_which_calls_select_a_file() -> None:
    def found(collective: Collective, runtime: str, form: str = XML) -> tuple[str, int]:
        demand = Demand(collective=collective, ranks=4, chunks=2)
        return selection(
            lowered(lower(ring(demand)), Target(instances=2)), runtime_of(runtime, form)
        )

    for runtime in ("msccl", STRICTEST):
        assert found(Collective.BROADCAST, runtime) == ("element counts that are multiples of 4", 4)
    assert found(Collective.ALLGATHER, "msccl") == ("element counts that are multiples of 16", 16)
    assert found(Collective.ALLGATHER, STRICTEST) == (
        "elements of one rank that are multiples of 16",
        64,
    )
    assert found(Collective.ALLGATHER, STRICTEST, JSON)[1] == 16 * 16


def test_more_threadblocks_than_processors_are_warned_of() -> None:
    assert oversubscription(msccl_xml.read(copies(80, waiting=-1, on=-1))[0]) == ""
    said = oversubscription(msccl_xml.read(copies(110, waiting=-1, on=-1))[0])
    assert "110 threadblocks on a GPU are more than the processors of V100 (80), A100 (108)" in said
