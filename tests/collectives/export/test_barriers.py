"""MSCCL++ plans without a barrier that their threads need are refused.

``nop`` is the only barrier between the operations of a threadblock; it was dropped while reading,
and an export without any was proven. Exports themselves lacked one where several semaphores were
acquired before a signal, or released after a wait: each is another thread's.
"""

import json
import random

import pytest

from benchmarks.synthesis.mscclpp_threads import Plan, nops, without_nop
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.export.mscclpp_json import (
    MAX_SEMAPHORES,
    _semaphores,
    _with_barriers,
    export,
)
from headrace.collectives.export.mscclpp_read import verify_text
from headrace.collectives.export.prove import Verdict
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from tests.collectives.export.programs import random_program, template_programs


def races(verdict: Verdict) -> list[str]:
    return [f.message for f in verdict.findings if f.rule == "race"]


def plan_of(ops: list[dict]) -> str:
    """One GPU that copies: an allreduce of one, with these operations."""
    block = {"id": 0, "ops": ops, "channels": [], "remote_buffer_refs": []}
    gpu = {
        "id": 0, "input_chunks": 4, "output_chunks": 4, "scratch_chunks": 4,
        "threadblocks": [block], "channels": [], "remote_buffers": [], "semaphores": [],
    }  # fmt: skip
    return json.dumps(
        {
            "name": "copies", "collective": "allreduce", "protocol": "Simple", "inplace": False,
            "gpus": [gpu], "min_message_size": 0, "max_message_size": (1 << 64) - 1,
        }
    )  # fmt: skip


def copy(src: str, dst: str, size: int) -> dict:
    places = [{"type": at[0], "index": int(at[1:]), "size": size} for at in (src, dst)]
    return {"name": "copy", "src_buff": places[:1], "dst_buff": places[1:]}


NOP = {"name": "nop"}


@pytest.mark.parametrize("seed", [*range(0, 40, 4), "ring"])
def test_a_plan_without_any_nop_is_refused(seed: int | str) -> None:
    ring_allreduce = Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=4)
    program = lower(ring(ring_allreduce)) if seed == "ring" else random_program(int(seed))
    plan = json.loads(export(program))
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op != NOP]
    verdict = verify_text(json.dumps(plan))
    assert races(verdict)
    assert not verdict.proven


def test_exports_behave_thread_by_thread() -> None:
    programs = [*template_programs(3), *((f"{s}", random_program(s)) for s in range(0, 60, 3))]
    programs += [(f"{s}", random_program(s)) for s in (11, 34, 50)]  # several semaphores a step
    for what, program in programs[::2]:
        assert Plan(export(program), program.demand.root).misbehaves(4) == "", what


def test_what_misbehaves_without_one_nop_is_refused() -> None:
    rng = random.Random(3)
    wrong = 0
    for seed in (0, 3, 20):
        program = random_program(seed)
        text = export(program, Target(in_place=program.demand.collective != "all_to_all"))
        places = nops(text)
        for place in rng.sample(places, min(16, len(places))):
            mutant = without_nop(text, *place)
            problem = Plan(mutant, program.demand.root).misbehaves(8)
            wrong += bool(problem)
            assert not (problem and verify_text(mutant).proven), (seed, place, problem)
    assert wrong > 3


def test_the_finding_names_both_operations_and_the_remedy() -> None:
    text = export(lower(ring(Demand(collective=Collective.BROADCAST, ranks=2))))
    plan = json.loads(text)
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    assert [op["name"] for op in ops[-3:]] == ["put", "nop", "signal"]
    del ops[-2]
    verdict = verify_text(json.dumps(plan))
    assert not verdict.proven
    (finding,) = verdict.findings
    assert (finding.rule, finding.gpu, finding.threadblock) == ("race", 0, 0)
    assert f"op {len(ops) - 1} (signal) is not ordered after op {len(ops) - 2} (put)" in str(
        finding
    )
    assert "needs a nop" in finding.message


def test_operations_apart_need_no_barrier() -> None:
    apart = [copy("i0", "o0", 2), copy("i2", "o2", 2)]
    assert verify_text(plan_of(apart)).proven
    through = [copy("i0", "s0", 4), copy("s3", "o3", 1), copy("i0", "o0", 3)]
    verdict = verify_text(plan_of(through))
    assert races(verdict)
    assert "both touch s[3]" in races(verdict)[0]
    assert verify_text(plan_of([through[0], NOP, *through[1:]])).proven
    twice = [copy("i0", "o0", 4), copy("i1", "o1", 2)]  # the same values, but writes of both
    assert races(verify_text(plan_of(twice)))


def test_a_copy_into_what_it_still_reads_is_a_race() -> None:
    shifted = [copy("i0", "s0", 4), NOP, copy("s0", "s1", 3), NOP, copy("i0", "o0", 4)]
    assert "needs ranges apart" in races(verify_text(plan_of(shifted)))[0]


def test_where_nops_are_written() -> None:
    def names(*ops: dict) -> str:
        return " ".join(op["name"] for op in _with_barriers(list(ops)))

    def semaphores(name: str, *numbers: int) -> dict:
        return {"name": name, "semaphore_ids": list(numbers)}

    signal, wait = {"name": "signal"}, {"name": "wait"}
    assert names(semaphores("sem_acquire", 0), signal, wait) == "sem_acquire signal wait"
    assert names(semaphores("sem_acquire", 0, 1), signal) == "sem_acquire nop signal"
    assert names(semaphores("sem_acquire", 0, 1), wait) == "sem_acquire wait"
    assert names(signal, wait, semaphores("sem_release", 0)) == "signal wait sem_release"
    assert names(signal, wait, semaphores("sem_release", 0, 1)) == "signal wait nop sem_release"
    assert names(signal, semaphores("sem_release", 0, 1)) == "signal sem_release"


def test_more_semaphores_than_one_operation_takes_are_several_operations() -> None:
    """They were one operation, beyond the end of the executor's array of 16."""
    ops = list(_semaphores("sem_acquire", range(MAX_SEMAPHORES + 1)))
    assert [len(op["semaphore_ids"]) for op in ops] == [MAX_SEMAPHORES, 1]
