"""Exports: files that real runtimes take, written in time, without a barrier that threads miss.

Plans of the tables, of the irregular machines and of random topologies are written in both formats
for the strictest runtime, each proven; `refusals` then holds every file against the limits as they
are stated, by itself. A plan that is not written names the limit that forbids it.

Barriers: of small exports each nop is left out once. What `verify` accepts is run thread by thread
by an interpreter that shares no code with it, under schedules in which threads lag behind.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.harness import Report
from benchmarks.synthesis.cases import CASES, TORI
from benchmarks.synthesis.irregular import COLLECTIVES, MACHINES
from benchmarks.synthesis.mscclpp_threads import Plan as ThreadPlan
from benchmarks.synthesis.mscclpp_threads import nops, without_nop
from benchmarks.synthesis.random_topologies import random_topology
from benchmarks.synthesis.table import MODELS
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.export import msccl_xml, mscclpp_json, mscclpp_read
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.plan.cost_model import FULL
from headrace.collectives.plan.generators import Effort, Method
from headrace.collectives.plan.lower import lower
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.synthesizers import EVERYONE
from headrace.collectives.plan.templates import ring
from headrace.collectives.program import Program
from headrace.collectives.run.search import NativeSearch
from headrace.errors import HeadraceError, VerificationError
from headrace.topology import Topology, presets

MIB = 1 << 20
RANDOM = 100
LARGE = 118
"""GPUs of a ring allreduce of 55,224 steps."""

SMALL: dict[str, Callable[[], Topology]] = {
    "uniform-3": lambda: presets.uniform(3),
    "mesh-2x2": lambda: presets.mesh((2, 2)),
    "hub-and-spoke-5": lambda: presets.hub_and_spoke(5),
}
"""Machines whose exports lose a nop."""

RUNS = 30
"""Schedules of a file that was accepted without a nop."""


class Planned(NamedTuple):
    """A program to export, and where it is from."""

    source: str
    name: str
    program: Program


def bars() -> dict[str, str]:
    """Return the bars."""
    return {
        "exports-refused": "<=0",
        "exports-not-written": "<=0.05",
        "export-s": "<=20",
        "nop-mutants-accepted": "<=0",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Add the rows and give the bars."""
    report.bar("export-s", _time(report))
    report.bar("nop-mutants-accepted", _barriers(report, quick=quick))
    _write(report, quick=quick)
    report.note(
        "exports: one instance, out of place; irregular and random plans with quick effort; "
        "equal programs of several rows are written once"
    )


def _time(report: Report) -> float:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=LARGE, chunks=LARGE)
    program = lower(ring(demand))
    slowest = 0.0
    for form, export in _FORMS.items():
        began = time.monotonic()
        text = export(program, Target())
        seconds = time.monotonic() - began
        slowest = max(slowest, seconds)
        report.row(
            "a large export",
            format=form,
            steps=len(program.steps["op"]),
            bytes=len(text),
            seconds=seconds,
        )
    return slowest


# ---- what is written


def _write(report: Report, *, quick: bool) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    forbidden: Counter[tuple[str, str]] = Counter()
    refused: list[str] = []
    seen: set[str] = set()
    for source, name, program in _planned(quick=quick):
        if program.digest in seen:
            continue
        seen.add(program.digest)
        for form, export in _FORMS.items():
            try:
                text = export(program, Target())
            except HeadraceError as error:
                counts[source, form, "not written"] += 1
                forbidden[f"{source}: {name}, {form}", str(error)[:160]] += 1
                continue
            counts[source, form, "written"] += 1
            refused += [f"{name}, {form}: {why}" for why in refusals(text)]
    for source, form in sorted({key[:2] for key in counts}):
        report.row(
            "exports for the strictest runtime",
            plans=source,
            format=form,
            written=counts[source, form, "written"],
            not_written=counts[source, form, "not written"],
        )
    for where, limit in sorted(forbidden):
        report.row("exports not written", plan=where, limit=limit)
    for why in refused:
        report.row("exports refused", why=why)
    report.bar("exports-refused", len(refused))
    report.bar("exports-not-written", sum(forbidden.values()) / max(1, counts.total()))


def _planned(*, quick: bool) -> Iterator[Planned]:
    for case in CASES[:3] if quick else (*CASES, *TORI):
        for model, costs in MODELS.items():
            plan = _plan(costs(case.make()), case.collective, case.total_bytes, chunks=case.chunks)
            yield Planned("tables", f"{case.name}, {model}", plan.program)
    for name, make in list(MACHINES.items())[: 2 if quick else None]:
        for collective in COLLECTIVES[:2] if quick else COLLECTIVES:
            plan = _plan(make(), collective, 16 * MIB, effort="quick")
            yield Planned("irregular", f"{name}, {collective}", plan.program)
    for seed in range(8 if quick else RANDOM):
        collective = COLLECTIVES[seed % len(COLLECTIVES)]
        plan = _plan(random_topology(seed), collective, MIB, effort="quick")
        yield Planned("random", f"seed {seed}, {collective}", plan.program)


def _plan(
    topology: Topology,
    collective: Collective,
    total_bytes: int,
    *,
    effort: Effort = "normal",
    chunks: int | None = None,
) -> Plan:
    method = Method(model=FULL, engine=NativeSearch(), effort=effort, chunks=chunks)
    return plan_collective(topology, collective, total_bytes, generators=EVERYONE, method=method)


_FORMS: dict[str, Callable[[Program, Target], str]] = {
    "msccl-xml": msccl_xml.export,
    "mscclpp-json": mscclpp_json.export,
}


# ---- limits, as they are stated


def refusals(text: str) -> list[str]:
    """Return which limits of all runtimes of its format a file breaks, by its text alone."""
    return [*(_json_refusals(text) if text.startswith("{") else _xml_refusals(text))]


def _xml_refusals(text: str) -> Iterator[str]:
    """MSCCL: microsoft/msccl and msccl-executor-nccl together."""
    algo = ElementTree.fromstring(text)
    if int(algo.get("nchannels", "0")) > 32:
        yield "more than 32 channels"
    for gpu in algo:
        where = f"gpu {gpu.get('id')}"
        ends: Counter[tuple[str, str | None]] = Counter()
        if len(gpu) > 216:
            yield f"{where}: {len(gpu)} threadblocks"
        if 1 + len(algo) + len(gpu) + sum(map(len, gpu)) > 4096:
            yield f"{where}: more than 4096 elements"
        for block in gpu:
            ends.update(
                (end, block.get("chan")) for end in ("send", "recv") if block.get(end) != "-1"
            )
            if len(block) > 64:
                yield f"{where}: {len(block)} steps in threadblock {block.get('id')}"
            for step in block:
                numbers = {name: int(step.get(name, "0")) for name in ("depid", "cnt")}
                offsets = max(int(step.get(name, "0")) for name in ("srcoff", "dstoff"))
                if numbers["depid"] > 127 or numbers["cnt"] >= 72 or offsets >= 1 << 15:
                    yield f"{where}: {step.attrib}"
        if ends and max(ends.values()) > 32:
            yield f"{where}: more than 32 threadblocks on a channel"


def _json_refusals(text: str) -> Iterator[str]:
    """MSCCL++, in default builds."""
    for gpu in json.loads(text)["gpus"]:
        for block in gpu["threadblocks"]:
            where = f"gpu {gpu['id']}, threadblock {block['id']}"
            if len(block["ops"]) > 64:
                yield f"{where}: {len(block['ops'])} operations"
            if sum(len(entry["channel_ids"]) for entry in block["channels"]) > 16:
                yield f"{where}: more than 16 channels"
            if sum(len(e["remote_buffer_ids"]) for e in block["remote_buffer_refs"]) > 16:
                yield f"{where}: more than 16 remote buffers"
            if max((len(op.get("semaphore_ids", ())) for op in block["ops"]), default=0) > 16:
                yield f"{where}: more than 16 semaphores in one operation"


# ---- barriers


def _barriers(report: Report, *, quick: bool) -> int:
    """Leave out each nop of small exports; return how many accepted files misbehave."""
    accepted_wrong = 0
    rng = random.Random(14)
    for name, make in list(SMALL.items())[: 1 if quick else None]:
        for collective in COLLECTIVES[:2] if quick else COLLECTIVES:
            program = _plan(make(), collective, MIB, effort="quick").program
            try:
                text = mscclpp_json.export(program, Target())
            except VerificationError:
                continue
            found: Counter[str] = Counter()
            places = nops(text)
            for place in rng.sample(places, min(len(places), 20 if quick else 200)):
                mutant = without_nop(text, *place)
                accepted = mscclpp_read.verify_text(mutant).proven
                found["accepted" if accepted else "refused"] += 1
                if accepted or rng.random() < 0.25:
                    wrong = bool(ThreadPlan(mutant).misbehaves(RUNS))
                    found["accepted, wrong" if accepted else "refused, run"] += (
                        wrong or not accepted
                    )
                    found["refused, wrong"] += wrong and not accepted
            accepted_wrong += found["accepted, wrong"]
            report.row(
                "exports without one nop",
                machine=name,
                collective=collective.value,
                nops=len(places),
                refused=found["refused"],
                refused_run=found["refused, run"],
                refused_wrong=found["refused, wrong"],
                accepted=found["accepted"],
                accepted_wrong=found["accepted, wrong"],
            )
    return accepted_wrong
