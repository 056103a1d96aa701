"""Exported, read back, proven, and the same plan: every collective, template, instance, mode."""

import random
from xml.etree import ElementTree

import pytest

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.export import msccl_xml, mscclpp_json, mscclpp_read
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program
from headrace.errors import VerificationError
from tests.collectives.export.machine import Machine
from tests.collectives.export.operations import Operations
from tests.collectives.export.programs import lowered, random_program, template_programs
from tests.collectives.export.recover import divided, recovered, same_plan

SAMPLED = pytest.mark.sampled(1)

UNREAD = (Collective.REDUCE_SCATTER, Collective.GATHER, Collective.SCATTER)
"""Collectives that microsoft/msccl has no name for, or another than msccl-executor-nccl."""


def targets(program: Program) -> list[Target]:
    out = [Target(instances=n) for n in (1, 2)]
    if program.demand.collective is Collective.ALL_TO_ALL:
        return out
    return [*out, *(Target(instances=n, in_place=True) for n in (1, 2))]


def check_xml(what: str, program: Program, target: Target, runs: int = 2) -> None:
    text = msccl_xml.export(program, target)
    verdict = msccl_xml.verify_text(text)
    demand = program.demand
    unread = demand.collective in UNREAD
    assert [f.message.rpartition(": ")[2] for f in verdict.findings] == [
        "refused by msccl"
    ] * unread, (what, target)
    assert verdict.demand is not None
    assert (verdict.demand.collective, verdict.demand.ranks) == (demand.collective, demand.ranks)
    assert verdict.demand.chunks == demand.chunks * target.instances
    if demand.collective in ROOTED and demand.ranks > 1:
        assert verdict.demand.root == demand.root
    algorithm, findings = msccl_xml.read(text)
    assert not findings
    assert msccl_xml.write(algorithm) == text
    again = recovered(algorithm)
    assert same_plan(divided(program, target.instances), again) == "", (what, target)
    assert Machine(text).misbehaves(runs, demand.root) == "", (what, target)


def check_json(what: str, program: Program, target: Target, runs: int = 1) -> None:
    text = mscclpp_json.export(program, target)
    assert not [f for f in mscclpp_read.verify_text(text).findings if f.fatal]
    algorithm, _ = mscclpp_read.read(text)
    again = recovered(algorithm)
    if text == mscclpp_json.write(lowered(program, target, store_all=True)):  # nothing was cut
        assert same_plan(divided(program, target.instances), again) == "", (what, target)
    assert Operations(text).misbehaves(runs, program.demand.root) == "", (what, target)


@SAMPLED
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_templates_to_xml_and_back(ranks: int) -> None:
    for what, program in template_programs(ranks):
        for target in targets(program):
            check_xml(what, program, target)


@SAMPLED
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_templates_to_json_and_back(ranks: int) -> None:
    for k, (what, program) in enumerate(template_programs(ranks)):
        for target in targets(program)[k % 2 :: 2]:
            check_json(what, program, target)


@SAMPLED
@pytest.mark.parametrize("instances", [4, 8])
def test_many_instances(instances: int) -> None:
    for k, (what, program) in enumerate(template_programs(4)):
        if k % 6 == 0:
            check_xml(what, program, Target(instances=instances))
            check_json(what, program, Target(instances=instances))


@SAMPLED
@pytest.mark.parametrize("block", range(4))
def test_random_programs(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        program = random_program(seed)
        verify(program)
        rng = random.Random(seed)
        target = rng.choice(targets(program))
        check_xml(f"random {seed}", program, target, runs=4)
        check_json(f"random {seed}", program, target, runs=2)


@SAMPLED
def test_the_recovered_program_of_a_simple_plan_is_byte_for_byte_the_same() -> None:
    """Where lowering has only one way to write it down, even digests agree."""
    same = 0
    for _, program in template_programs(4):
        algorithm, _ = msccl_xml.read(msccl_xml.export(program))
        same += recovered(algorithm).digest == program.digest
    assert same > 5


def test_same_plan_tells_plans_apart() -> None:
    programs = [program for _, program in template_programs(3)]
    first = programs[0]
    assert same_plan(first, first) == ""
    assert all(same_plan(first, other) for other in programs[2:])


def test_texts_are_the_same_every_time() -> None:
    for _, program in template_programs(3):
        assert msccl_xml.export(program) == msccl_xml.export(program)
        assert mscclpp_json.export(program) == mscclpp_json.export(program)
        break


def rounds(text: str) -> int:
    """Steps one after another if each takes as long, connections hold two, and copies are free."""
    algo = ElementTree.fromstring(text)
    done: dict[tuple[str, str, int], int] = {}
    sent: dict[tuple[str, str, str], list[int]] = {}
    received: dict[tuple[str, str, str], int] = {}
    blocks = [(gpu.get("id"), tb) for gpu in algo for tb in gpu]
    at = dict.fromkeys(range(len(blocks)), 0)
    moved = True
    while moved:
        moved = False
        for k, (gpu, tb) in enumerate(blocks):
            while at[k] < len(tb):
                step, kind = tb[at[k]], tb[at[k]].get("type")
                start = done.get((gpu, tb.get("id"), at[k] - 1), 0)
                on = (gpu, step.get("depid"), int(step.get("deps")))
                if step.get("depid") != "-1":
                    if on not in done:
                        break
                    start = max(start, done[on])
                came = (tb.get("recv"), gpu, tb.get("chan"))
                if kind.startswith("r") and kind != "re":
                    nth = received.get(came, 0)
                    if len(sent.get(came, [])) <= nth:
                        break
                    start = max(start, sent[came][nth])
                    received[came] = nth + 1
                end = start + (kind in ("s", "rcs", "rrs", "rrcs"))
                if kind in ("s", "rcs", "rrs", "rrcs"):
                    sent.setdefault((gpu, tb.get("send"), tb.get("chan")), []).append(end)
                done[gpu, tb.get("id"), at[k]] = end
                at[k] += 1
                moved = True
    assert all(at[k] == len(tb) for k, (_, tb) in enumerate(blocks))
    return max(done.values())


@SAMPLED
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_buffered_exports_are_proven_for_connections_that_hold_two_chunks(ranks: int) -> None:
    made = 0
    for what, program in template_programs(ranks):
        target = Target(buffered=True)
        try:
            text = msccl_xml.export(program, target)
        except VerificationError as error:
            assert "deadlock" in str(error)  # it would take more than two
            continue
        made += 1
        verdict = msccl_xml.verify_text(text)
        expected = {"buffering", "limit"} if program.demand.collective in UNREAD else {"buffering"}
        assert {finding.rule for finding in verdict.findings} <= expected, what
        assert Machine(text).misbehaves(3, program.demand.root) == "", what
    assert made > 10


def test_threadblocks_keep_what_can_run_at_once_apart() -> None:
    """A send and a receive that cannot be fused wait for each other in one threadblock.

    All lanes of a ring were once paired, though with nothing buffered hardly any step can be
    fused: 60 rounds of six GPUs instead of 10.
    """
    program = lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=6, chunks=6)))
    strict = msccl_xml.export(program)
    buffered = msccl_xml.export(program, Target(buffered=True))
    assert rounds(strict) == rounds(buffered) == 2 * 5
    fused = [
        text.count('"rcs"') + text.count('"rrs"') + text.count('"rrcs"')
        for text in (strict, buffered)
    ]
    assert fused[0] < fused[1] == 6 * (2 * 5 - 1)


def test_chains_and_trees_are_fused() -> None:
    for collective, kind in ((Collective.BROADCAST, "rcs"), (Collective.REDUCE, "rrs")):
        program = lower(ring(Demand(collective=collective, ranks=5, chunks=4)))
        text = msccl_xml.export(program)
        assert text.count(f'"{kind}"') == 3 * 4


@SAMPLED
def test_random_buffered_exports() -> None:
    for seed in range(40):
        program = random_program(seed)
        try:
            text = msccl_xml.export(program, Target(buffered=True))
        except VerificationError as error:
            assert "deadlock" in str(error)
            continue
        assert Machine(text).misbehaves(3, program.demand.root) == "", seed
