"""Plans and plan books as tables, and their proofs made anew."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import RenderableType

from headrace.artifact import Artifact
from headrace.cli.tables import facts, rows
from headrace.collectives.cli.entries import entry_tables
from headrace.collectives.cli.sends import send_tables
from headrace.collectives.demand import ROOTED
from headrace.collectives.export import msccl_xml, mscclpp_read
from headrace.collectives.export.prove import Verdict
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.ir.statistics import program_statistics
from headrace.collectives.plan.locality import locality
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.verify import VERIFIER_VERSION, Proof
from headrace.collectives.plan.verify import verify as prove
from headrace.collectives.program import Program
from headrace.errors import VerificationError
from headrace.units import duration, size

_FINDINGS = 200
"""Most findings that are printed, errors first; a damaged file has one for every step."""


def show_plan(plan: Plan, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan: its certificate, candidates and sends."""
    demand, program = plan.program.demand, plan.program
    rooted = f", root {demand.root}" if demand.collective in ROOTED else ""
    yield facts(
        "plan",
        {
            "collective": f"{demand.collective} of {demand.ranks} ranks{rooted}",
            "made by": f"{plan.generator}, {demand.chunks} chunks a block",
            "program": f"{len(program.lanes['rank'])} lanes, {len(program.steps['op'])} steps, "
            f"{len(program.dependencies['on'])} dependencies",
            "proof": f"{plan.proof.program_digest[:12]}, verifier {plan.proof.verifier_version}",
            "topology": plan.topology_digest[:12],
            "scored at": size(plan.total_bytes),
            "predicted": f"{duration(plan.predicted_us)} ({plan.model.name} model)",
            "bound": f"{duration(plan.bound.total_us)} "
            f"(payload {duration(plan.bound.bandwidth_us)}, "
            f"latency {duration(plan.bound.latency_us)})",
            "gap": f"{plan.gap:z.1%}",
            "why": plan.why,
            **_counted(plan),
        },
        everything=everything,
    )
    yield from rows(
        "candidates",
        ("generator", "chunks", "predicted", "note"),
        [(c.generator, c.chunks or "", duration(c.predicted_us), c.note) for c in plan.candidates],
        everything=everything,
    )
    yield from send_tables(plan, everything=everything)


def _counted(plan: Plan) -> dict[str, str]:
    """Return rounds and bytes (PLink, table 1): between hosts, or racks if each has one rank."""
    groups = locality(plan.topology)
    statistics = program_statistics(plan.program, groups or ())
    rows = {
        "rounds": f"{statistics.rounds}, {statistics.messages} messages",
        "on the wire": size(round(statistics.wire * plan.total_bytes), plan.total_bytes),
    }
    if groups:
        share = statistics.across / statistics.wire if statistics.wire else 0.0
        across = size(round(statistics.across * plan.total_bytes), plan.total_bytes)
        rows["across groups"] = f"{across} ({share:z.0%})"
    return rows


def show_book(book: PlanBook, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan book: its topology, groups and entries."""
    groups = "none" if book.groups is None else " ".join(str(list(g)) for g in book.groups)
    yield facts(
        "plan book",
        {
            "topology": f"{book.topology.name}, {book.topology.ranks} ranks, "
            f"{book.topology.digest[:12]}",
            "groups": groups,
            "programs": f"{len(book.programs)}, used by {len(book.entries)} plans",
        },
        everything=everything,
    )
    yield from entry_tables(book.entries)


def verify_plan(artifact: Artifact, source: str) -> Iterator[str]:
    """Prove the program of a plan: loading does."""
    plan = Plan.from_artifact(artifact, source)
    return _proven([(plan.program, plan.proof, f"made by {plan.generator}")])


def verify_book(artifact: Artifact, source: str) -> Iterator[str]:
    """Prove every program of a plan book: loading does."""
    book = PlanBook.from_artifact(artifact, source)
    names = {e.plan.proof.program_digest: e.plan.generator for e in book.entries}
    return _proven(
        [(p, proof, f"made by {names[proof.program_digest]}") for p, proof in book.programs]
    )


def verify_program(artifact: Artifact, source: str) -> Iterator[str]:
    """Prove a program by itself."""
    program = Program.from_artifact(artifact, source)
    try:
        proof = prove(program)
    except VerificationError as error:
        raise VerificationError(f"{source}: {error}") from error
    return _proven([(program, proof, "by itself")])


def verify_orbit_plan(artifact: Artifact, source: str) -> Iterator[str]:
    """Prove an orbit plan at the size of one rank's sends."""
    from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
    from headrace.collectives.plan.generators.orbits.verify import verify_orbits

    plan = OrbitPlan.from_artifact(artifact, source)
    proof = verify_orbits(plan)
    yield (
        f"ok {proof.plan_digest[:12]} {plan.demand.collective} of {proof.ranks} ranks, proven by "
        f"symmetry from rank 0's {proof.sends} sends"
    )


def verify_msccl(file: Path) -> Iterator[str]:
    """Check an MSCCL XML file of any tool; raises VerificationError if it is wrong."""
    return _findings(file, msccl_xml.verify_file(file))


def verify_mscclpp(file: Path) -> Iterator[str]:
    """Check an MSCCL++ JSON file of any tool; raises VerificationError if it is wrong."""
    return _findings(file, mscclpp_read.verify_file(file))


def _findings(file: Path, verdict: Verdict) -> Iterator[str]:
    """Yield the lines on a checked file of another tool, errors first."""
    yield from map(str, verdict.findings[:_FINDINGS])
    if (more := len(verdict.findings) - _FINDINGS) > 0:
        yield f"... and {more} more"
    fatal = sum(finding.fatal for finding in verdict.findings)
    demand = verdict.demand
    what = "unknown collective" if demand is None else f"{demand.collective} of {demand.ranks} GPUs"
    if not verdict.proven:
        raise VerificationError(f"{file}: {what} refuted: {fatal} errors")
    yield f"ok {what}, {len(verdict.findings)} warnings"


def _proven(programs: list[tuple[Program, Proof, str]]) -> Iterator[str]:
    for program, proof, used_for in programs:
        what = f"{program.demand.collective} of {program.demand.ranks} ranks, {used_for}"
        yield f"ok {proof.program_digest[:12]} {what}"
    count = len(programs)
    yield f"{count} of {count} programs proven, verifier version {VERIFIER_VERSION}"
