"""MSCCL++ plans: their form, and spoiled ones."""

import json
import random
from collections import Counter

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import MscclppError, ProgramError
from headrace.collectives.export.mscclpp_json import export, write
from headrace.collectives.export.mscclpp_read import verify_text
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from tests.collectives.export.operations import Operations
from tests.collectives.export.programs import lowered, random_program, template_programs


def operations(text: str) -> list[dict]:
    return [
        op for gpu in json.loads(text)["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"]
    ]


def test_a_message_is_put_and_a_reduction_is_read() -> None:
    gathered = Counter(
        op["name"]
        for op in operations(export(lower(ring(Demand(collective=Collective.ALLGATHER, ranks=4)))))
    )
    assert gathered["put"] == 12
    assert not {"rre", "rres"} & set(gathered)
    reduced = Counter(
        op["name"]
        for op in operations(
            export(lower(ring(Demand(collective=Collective.REDUCE_SCATTER, ranks=4))))
        )
    )
    assert reduced["rre"] == 12
    assert "put" not in reduced


def test_a_reduction_that_is_stored_elsewhere_too_is_one_operation() -> None:
    """In an allreduce the last reduction of a part is forwarded to ranks that only store it."""
    program = lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=4)))
    names = Counter(op["name"] for op in operations(export(program)))
    assert names["rres"] > 0


def test_the_top_has_what_the_executor_reads() -> None:
    program = lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=2, chunks=2)))
    plan = json.loads(export(program, Target(in_place=True, min_bytes=64, max_bytes=4096)))
    assert plan["inplace"] is True
    assert (plan["min_message_size"], plan["max_message_size"]) == (64, 4096)
    assert json.loads(export(program))["max_message_size"] == (1 << 64) - 1
    for gpu in plan["gpus"]:
        assert set(gpu) == {
            "id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels",
            "remote_buffers", "semaphores",
        }  # fmt: skip


def test_long_threadblocks_are_warned_of_in_one_line() -> None:
    program = lower(ring(Demand(collective=Collective.BROADCAST, ranks=3, chunks=40)))
    (finding,) = verify_text(write(lowered(program, Target(), store_all=True))).findings
    assert (finding.rule, finding.fatal) == ("limit", False)
    assert "operations: refused by mscclpp (at most 64)" in finding.message
    assert verify_text(export(program)).findings == ()


def test_packets_and_buffers_are_refused() -> None:
    program = lower(ring(Demand(collective=Collective.BROADCAST, ranks=2)))
    for target, says in ((Target(protocol="LL"), "Simple"), (Target(buffered=True), "nothing")):
        with pytest.raises(ProgramError, match=says):
            export(program, target)


def spoil(plan: dict, rng: random.Random) -> None:
    blocks = [tb for gpu in plan["gpus"] for tb in gpu["threadblocks"] if tb["ops"]]
    ops = rng.choice(blocks)["ops"]
    k = rng.randrange(len(ops))
    op = ops[k]
    change = rng.randrange(5)
    if change == 0:
        del ops[k]
    elif change == 1:
        ops.insert(rng.randrange(len(ops) + 1), ops.pop(k))
    elif change == 2 and "src_buff" in op:
        buff = rng.choice([*op["src_buff"], *op["dst_buff"]])
        buff["index"] += rng.choice((-1, 1))
    elif change == 3 and "semaphore_ids" in op:
        op["semaphore_ids"].pop()
    elif change == 4 and "channel_ids" in op:
        op["channel_ids"] = [1 - min(op["channel_ids"][0], 1)]


@pytest.mark.sampled(4, of="long plans")
def test_spoiled_plans_are_refused_or_harmless() -> None:
    rng = random.Random(11)
    programs = [program for _, program in template_programs(3)]
    programs += [random_program(seed) for seed in range(8)]
    texts = [(export(program), program.demand.root) for program in programs]
    seen: Counter[str] = Counter()
    for _ in range(500):
        text, root = rng.choice(texts)
        plan = json.loads(text)
        spoil(plan, rng)
        mutant = json.dumps(plan)
        try:
            verdict = verify_text(mutant)
        except MscclppError:
            seen["refused"] += 1
            continue
        if not verdict.proven:
            seen["refuted"] += 1
            continue
        seen["proven"] += 1
        if verdict.demand is not None and verdict.demand.root == root:
            assert Operations(mutant).misbehaves(4, root) == "", mutant
    assert min(seen["refused"], seen["refuted"], seen["proven"]) > 10, seen


def test_connections_that_hold_nothing_make_a_cycle_a_deadlock() -> None:
    """A cycle of waits was proven as if MSCCL++ connections held chunks, as NCCL's do."""
    program = lower(ring(Demand(collective=Collective.ALLGATHER, ranks=2)))
    plan = json.loads(export(program, Target(in_place=True)))
    for gpu in plan["gpus"]:  # one threadblock that puts first, then takes what is put there
        put = next(b for b in gpu["threadblocks"] if any(op["name"] == "put" for op in b["ops"]))
        got = next(b for b in gpu["threadblocks"] if b is not put)
        channels = put["channels"][0]["channel_ids"] + got["channels"][0]["channel_ids"]
        put["channels"][0]["channel_ids"] = channels
        put["ops"] += [{**op, "channel_ids": [1]} for op in got["ops"]]
        put["id"], gpu["threadblocks"] = 0, [put]
    assert "stuck" in Operations(json.dumps(plan)).misbehaves(1)
    verdict = verify_text(json.dumps(plan))
    assert [f.rule for f in verdict.findings if f.fatal] == ["deadlock"]
