"""Spoiled XML is refuted, naming where, or an interpreter finds nothing wrong with it either."""

import random
from collections import Counter
from functools import cache
from xml.etree import ElementTree

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import MscclError
from headrace.collectives.export.msccl_xml import export, verify_text
from headrace.collectives.export.prove import Verdict
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.generators.templates.doubling import halving_doubling
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Program
from tests.collectives.export.machine import Machine
from tests.collectives.export.programs import random_program, template_programs
from tests.collectives.export.xml_mutants import MUTATIONS, Mutation, drop_flag


def ring_allreduce(ranks: int = 4) -> Program:
    return lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=ranks)))


@cache
def texts() -> list[tuple[str, int]]:
    """(XML, root) of many collectives, in place and out of place."""
    out: list[tuple[str, int]] = []
    programs = [program for _, program in template_programs(3)]
    programs += [random_program(seed) for seed in range(12)]
    for k, program in enumerate(programs):
        in_place = k % 2 == 0 and program.demand.collective is not Collective.ALL_TO_ALL
        out.append((export(program, Target(in_place=in_place)), program.demand.root))
    return out


def names_a_place(verdict: Verdict, text: str) -> bool:
    """The first finding names a GPU that exists, with a threadblock and step if it says so."""
    algo = ElementTree.fromstring(text)
    first = verdict.findings[0]
    gpus = {int(gpu.get("id")): gpu for gpu in algo}
    if first.gpu not in gpus or not first.message:
        return False
    if first.threadblock < 0:
        return True
    blocks = [tb for tb in gpus[first.gpu] if int(tb.get("id")) == first.threadblock]
    return bool(blocks) and (first.step < 0 or any(first.step < len(tb) for tb in blocks))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_mutants_are_refuted_or_harmless(mutation: Mutation) -> None:
    rng = random.Random(mutation.__name__)
    seen: Counter[str] = Counter()
    for text, root in texts():
        for _ in range(3):
            algo = ElementTree.fromstring(text)
            if not mutation(algo, rng):
                continue
            mutant = ElementTree.tostring(algo, encoding="unicode")
            verdict = verify_text(mutant)
            if verdict.proven:
                seen["proven"] += 1
                if verdict.demand is not None and verdict.demand.root == root:
                    assert Machine(mutant).misbehaves(12, root) == "", mutant
                continue
            seen["refuted"] += 1
            assert verdict.findings[0].fatal
            assert names_a_place(verdict, mutant), verdict.findings[0]
    assert seen["refuted"] > 3, seen


@pytest.mark.sampled(4, of="long plans")
def test_what_the_interpreter_sees_go_wrong_is_refuted() -> None:
    """The reverse: of random mutants, every one that misbehaves in a run is refuted."""
    rng = random.Random(5)
    wrong = 0
    for _ in range(300):
        text, root = rng.choice(texts())
        algo = ElementTree.fromstring(text)
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice(MUTATIONS)(algo, rng)
        mutant = ElementTree.tostring(algo, encoding="unicode")
        verdict = verify_text(mutant)
        if any(f.rule in ("format", "connection") and f.fatal for f in verdict.findings):
            continue  # the interpreter need not understand it
        if verdict.demand is None or verdict.demand.root != root:
            continue
        if Machine(mutant).misbehaves(6, root):
            wrong += 1
            assert not verdict.proven, mutant
    assert wrong > 20


def broken(change: str, value: str, *, at: str = "step", text: str | None = None) -> Verdict:
    """Change an attribute of gpu 1's threadblock 0 (or of its step 1) in a ring allreduce."""
    algo = ElementTree.fromstring(text or export(ring_allreduce(), Target(in_place=True)))
    node = algo[1][0]
    (node[1] if at == "step" else node).set(change, value)
    return verify_text(ElementTree.tostring(algo, encoding="unicode"))


def first_place(verdict: Verdict) -> tuple[str, int, int, int]:
    assert not verdict.proven
    finding = verdict.findings[0]
    return finding.rule, finding.gpu, finding.threadblock, finding.step


def test_a_peer_that_is_the_gpu_itself_is_named() -> None:
    verdict = broken("send", "1", at="tb")
    assert first_place(verdict) == ("format", 1, 0, -1)
    assert "the GPU itself" in verdict.findings[0].message


def test_a_count_beyond_the_limit_is_named() -> None:
    verdict = broken("cnt", "72")
    assert ("limit", 1, 0, 1) in [(f.rule, f.gpu, f.threadblock, f.step) for f in verdict.findings]
    assert not verdict.proven


def test_an_offset_out_of_bounds_is_named() -> None:
    assert first_place(broken("srcoff", "99")) == ("format", 1, 0, 1)  # an rrs: it reads there


def test_a_duplicate_threadblock_is_named() -> None:
    algo = ElementTree.fromstring(export(ring_allreduce(), Target(in_place=True)))
    algo[2].append(ElementTree.fromstring(ElementTree.tostring(algo[2][0])))
    verdict = verify_text(ElementTree.tostring(algo, encoding="unicode"))
    assert first_place(verdict)[:2] == ("format", 2)
    assert "threadblock ids are 0, 0" in verdict.findings[0].message


def test_a_missing_flag_is_a_deadlock_at_the_waiting_step() -> None:
    program = lower(halving_doubling(Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=4)))
    algo = ElementTree.fromstring(export(program, Target(in_place=True)))
    for gpu in algo:
        for tb in gpu:
            for step in tb:
                step.set("hasdep", "0")
    verdict = verify_text(ElementTree.tostring(algo, encoding="unicode"))
    first = verdict.findings[0]
    waiting = algo[first.gpu][first.threadblock][first.step]
    assert (first.rule, waiting.get("depid") != "-1") == ("deadlock", True)
    assert "never published" in first.message


def test_a_flag_that_comes_later_is_a_warning() -> None:
    """The executor publishes progress, not steps: waiting for more is no error."""
    rng = random.Random(0)
    warned = 0
    for text, _ in texts():
        algo = ElementTree.fromstring(text)
        drop_flag(algo, rng)
        verdict = verify_text(ElementTree.tostring(algo, encoding="unicode"))
        warned += verdict.proven and any("it waits until" in f.message for f in verdict.findings)
    assert warned


def test_a_cycle_through_two_gpus_is_a_deadlock_whatever_is_buffered() -> None:
    algo = ElementTree.fromstring(
        export(lower(direct(Demand(collective=Collective.ALL_TO_ALL, ranks=2))))
    )
    for gpu in algo:  # every send waits for the receive
        sends = next(tb for tb in gpu if tb.get("send") != "-1")
        receives = next(tb for tb in gpu if tb.get("recv") != "-1")
        sends[0].set("depid", receives.get("id"))
        sends[0].set("deps", "0")
        receives[0].set("hasdep", "1")
    verdict = verify_text(ElementTree.tostring(algo, encoding="unicode"))
    assert first_place(verdict)[0] == "deadlock"
    text = verdict.findings[0].message
    assert "gpu 0, threadblock" in text
    assert "gpu 1, threadblock" in text
    assert "rank" not in text


def test_a_dropped_wait_is_a_race_between_the_two_steps() -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=3)
    algo = ElementTree.fromstring(export(lower(direct(demand)), Target(in_place=True)))
    found = 0
    for gpu in algo:
        for tb in gpu:
            for k, step in enumerate(tb):
                wait = step.get("depid"), step.get("deps")
                if wait[0] == "-1":
                    continue
                step.set("depid", "-1")
                verdict = verify_text(ElementTree.tostring(algo, encoding="unicode"))
                step.set("depid", wait[0])
                place = f"gpu {gpu.get('id')}, threadblock {tb.get('id')}, step {k} "
                if not verdict.proven and verdict.findings[0].rule == "race":
                    found += 1
                    assert place in verdict.findings[0].message
    assert found


@pytest.mark.parametrize("coll", ["alltoallv", "send", "recv", "everything"])
def test_what_is_not_provable_is_refused(coll: str) -> None:
    text = export(ring_allreduce()).replace('coll="allreduce"', f'coll="{coll}"')
    verdict = verify_text(text)
    assert not verdict.proven
    assert "cannot be proven" in verdict.findings[0].message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("<algo", "<!DOCTYPE a [<!ENTITY x 'y'>]><algo", "document type"),
        ("<algo", "<?php x?><algo", "processing instruction"),
        ("<algo", "text<algo", "not well-formed"),
        ('cnt="1"', 'cnt="one"', "needs an integer"),
        ('cnt="1"', 'cnt="1e9"', "needs an integer"),
        (' cnt="1"', "", "'cnt' is missing"),
        ('type="r', 'type="x', "'type' is"),
        ('srcbuf="i"', 'srcbuf="q"', "needs i, o or s"),
        ('ngpus="4"', 'ngpus="1000000000"', "'ngpus' is"),
        ('proto="Simple"', 'proto="Fast"', "'proto' is"),
        ("<tb", "<step", "step in gpu"),
        ("</algo>", "", "not well-formed"),
    ],
)
def test_malformed_text_is_refused_with_the_line(old: str, new: str, says: str) -> None:
    text = export(ring_allreduce()).replace(old, new)
    with pytest.raises(MscclError, match="line") as caught:
        verify_text(text)
    assert says in str(caught.value)
