"""Exports: files that real runtimes accept, written in bounded time, without a missing barrier.

Plans of the tables, of the irregular machines and of random topologies are written in both formats
for the strictest runtime, each proven; `refusals` then checks every file independently against the
stated limits. A plan that is not written names the limit that forbids it.

Barriers: of small exports each nop is left out once. What `verify` accepts is run thread by thread
by an interpreter that shares no code with it, under schedules in which threads lag behind.
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
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
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.table import ALL_GENERATORS
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Effort, Method
from headrace.collectives.program import Program
from headrace.collectives.run.synthesis import NativeSearch
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


class Row(NamedTuple):
    """A plan to export: its source, and its index there."""

    source: str
    name: str
    place: tuple[int, int]


class Exported(NamedTuple):
    """Outcome of a plan, by format: the limits that a file breaks, or why there is no file."""

    row: Row
    digest: str
    refused: dict[str, list[str]]
    forbidden: dict[str, str]
    seconds: float


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


# ---- written files


def _write(report: Report, *, quick: bool) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    forbidden: list[dict[str, str]] = []
    refused: list[str] = []
    seen: set[str] = set()
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for row, digest, broken, kept, seconds in pool.imap_unordered(_exported, _rows(quick)):
            if digest in seen:
                continue
            seen.add(digest)
            for form in _FORMS:
                counts[row.source, form, "not written" if form in kept else "written"] += 1
                counts[row.source, form, "s"] += round(seconds)
            forbidden += [
                {"plan": f"{row.source}: {row.name}, {form}", "limit": limit}
                for form, limit in kept.items()
            ]
            refused += [f"{row.name}, {form}: {why}" for form in broken for why in broken[form]]
    for source, form in sorted({key[:2] for key in counts}):
        report.row(
            "exports for the strictest runtime",
            plans=source,
            format=form,
            written=counts[source, form, "written"],
            not_written=counts[source, form, "not written"],
            seconds_both_with_planning=counts[source, form, "s"],
        )
    for columns in forbidden:
        report.row("exports not written", **columns)
    for why in refused:
        report.row("exports refused", why=why)
    report.bar("exports-refused", len(refused))
    report.bar("exports-not-written", len(forbidden) / max(1, len(_FORMS) * len(seen)))


_CASES = (*TORI[::-1], *CASES)


def _rows(quick: bool) -> list[Row]:
    """Return every plan, those first that take longest."""
    rows = [
        Row("tables", f"{case.name}, {model}", (number, which))
        for number, case in enumerate(_CASES)
        if not quick or case in CASES[:3]
        for which, model in enumerate(MODELS)
    ]
    rows += [
        Row("irregular", f"{machine}, {collective}", (number, which))
        for number, machine in enumerate(list(MACHINES)[: 2 if quick else None])
        for which, collective in enumerate(COLLECTIVES[:2] if quick else COLLECTIVES)
    ]
    rows += [
        Row("random", f"seed {seed}, {COLLECTIVES[seed % len(COLLECTIVES)]}", (seed, 0))
        for seed in range(8 if quick else RANDOM)
    ]
    return rows


def _planned(row: Row) -> Program:
    number, which = row.place
    if row.source == "tables":
        case = _CASES[number]
        topology = list(MODELS.values())[which](case.make())
        return _plan(topology, case.collective, case.total_bytes, chunks=case.chunks).program
    if row.source == "irregular":
        topology = list(MACHINES.values())[number]()
        return _plan(topology, COLLECTIVES[which], 16 * MIB, effort="quick").program
    collective = COLLECTIVES[number % len(COLLECTIVES)]
    return _plan(random_topology(number), collective, MIB, effort="quick").program


def _exported(row: Row) -> Exported:
    """Plan a row and export it in both formats, in a process of the pool."""
    began = time.monotonic()
    program = _planned(row)
    broken: dict[str, list[str]] = {}
    kept: dict[str, str] = {}
    for form, export in _FORMS.items():
        try:
            broken[form] = refusals(export(program, Target()))
        except HeadraceError as error:
            kept[form] = str(error)[:160]
    return Exported(row, program.digest, broken, kept, time.monotonic() - began)


def _plan(
    topology: Topology,
    collective: Collective,
    total_bytes: int,
    *,
    effort: Effort = "normal",
    chunks: int | None = None,
) -> Plan:
    method = Method(model=FULL, engine=NativeSearch(), effort=effort, chunks=chunks)
    return plan_collective(
        topology, collective, total_bytes, generators=ALL_GENERATORS, method=method
    )


_FORMS: dict[str, Callable[[Program, Target], str]] = {
    "msccl-xml": msccl_xml.export,
    "mscclpp-json": mscclpp_json.export,
}


# ---- stated limits


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


def _barriers(report: Report, *, quick: bool) -> int | None:
    """Leave out each nop of small exports; return how many accepted files misbehave, of any."""
    mutants = accepted_wrong = 0
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
            mutants += found["accepted"] + found["refused"]
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
    return accepted_wrong if mutants else None
