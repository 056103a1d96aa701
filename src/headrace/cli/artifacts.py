"""``headrace show`` and ``headrace verify``: print any artifact, prove any plan again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table

import headrace.artifact as artifact_io
from headrace.artifact import Artifact
from headrace.collectives.cli.entries import entry_tables
from headrace.collectives.cli.export import verify_foreign
from headrace.collectives.cli.sends import send_tables
from headrace.collectives.demand import ROOTED
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.ir.statistics import program_statistics
from headrace.collectives.plan.locality import locality
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.verify import VERIFIER_VERSION, Proof
from headrace.collectives.plan.verify import verify as prove
from headrace.collectives.program import Program
from headrace.errors import ArtifactError, VerificationError
from headrace.topology import Topology
from headrace.topology.profile import Profile
from headrace.units import duration, rate, size

_LINKS = 60
"""Most links, and rows of any other table, that are printed without --all."""

_CHARACTERS = 2000
"""Most characters of a text that are printed without --all."""

_File = Annotated[Path, typer.Argument(help="An artifact that headrace wrote.", metavar="FILE")]


def show_command(
    file: _File,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every send and link, however many there are.")
    ] = False,
) -> None:
    """Print an artifact: a topology, a profile, a plan (with its sends) or a book."""
    artifact = artifact_io.load(file)
    console = Console(markup=False, emoji=False)  # a file's names are no mark-up
    rows = {
        "kind": f"{artifact.kind} (schema {artifact.schema})",
        "digest": artifact.digest,
        **{name: _text(value) for name, value in artifact.provenance.items()},
    }
    console.print(_facts(str(file), rows))
    for table in _SHOWN.get(artifact.kind, _show_head)(artifact, str(file), everything):
        console.print(table)


def verify_command(file: _File) -> None:
    """Prove a plan, every plan of a book, or an MSCCL XML or MSCCL++ JSON file of any tool."""
    if verify_foreign(file):
        return
    artifact = artifact_io.load(file)
    console = Console()
    if artifact.kind == "orbit-plan":
        _verify_orbits(artifact, str(file), console)
        return
    proven = _proven(artifact, str(file))
    for program, proof, used_for in proven:
        what = f"{program.demand.collective} of {program.demand.ranks} ranks, {used_for}"
        console.print(f"ok {proof.program_digest[:12]} {what}", markup=False, highlight=False)
    console.print(
        f"{len(proven)} of {len(proven)} programs proven, verifier version {VERIFIER_VERSION}"
    )


def _verify_orbits(artifact: Artifact, source: str, console: Console) -> None:
    from headrace.collectives.plan.generators.orbits import OrbitPlan, verify_orbits

    plan = OrbitPlan.from_artifact(artifact, source)
    proof = verify_orbits(plan)
    console.print(
        f"ok {proof.plan_digest[:12]} {plan.demand.collective} of {proof.ranks} ranks, proven by "
        f"symmetry from rank 0's {proof.sends} sends",
        markup=False,
        highlight=False,
    )


def _proven(artifact: Artifact, source: str) -> list[tuple[Program, Proof, str]]:
    """Return the programs with their proofs, which loading a plan or a book makes anew."""
    if artifact.kind == "program":
        program = Program.from_artifact(artifact, source)
        try:
            return [(program, prove(program), "by itself")]
        except VerificationError as error:
            raise VerificationError(f"{source}: {error}") from error
    if artifact.kind == "plan":
        plan = Plan.from_artifact(artifact, source)
        return [(plan.program, plan.proof, f"made by {plan.generator}")]
    if artifact.kind == "plan-book":
        book = PlanBook.from_artifact(artifact, source)
        names = {e.plan.proof.program_digest: e.plan.generator for e in book.entries}
        return [(p, proof, f"made by {names[proof.program_digest]}") for p, proof in book.programs]
    raise ArtifactError(
        f"{source}: field 'kind' is '{artifact.kind}', only 'plan', 'plan-book', "
        "'orbit-plan' and 'program' hold programs to verify"
    )


def _show_topology(artifact: Artifact, source: str, everything: bool) -> Iterable[RenderableType]:
    return _topology_tables(Topology.from_head(artifact.head, source), everything)


def _show_profile(artifact: Artifact, source: str, everything: bool) -> Iterable[RenderableType]:
    profile = Profile.from_artifact(artifact, source)
    yield _facts("profile", dict(profile.summary()), everything=everything)
    yield from _topology_tables(profile.topology, everything)


def _show_plan(artifact: Artifact, source: str, everything: bool) -> Iterable[RenderableType]:
    plan = Plan.from_artifact(artifact, source)
    demand, program = plan.program.demand, plan.program
    rooted = f", root {demand.root}" if demand.collective in ROOTED else ""
    yield _facts(
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
    yield from _rows(
        "candidates",
        ("generator", "chunks", "predicted", "note"),
        [(c.generator, c.chunks or "", duration(c.predicted_us), c.note) for c in plan.candidates],
        everything=everything,
    )
    yield from send_tables(plan, everything=everything)


def _counted(plan: Plan) -> dict[str, str]:
    """Return rounds and bytes (PLink, table 1): between hosts, or racks if each has one rank."""
    groups = locality(plan.topology)
    found = program_statistics(plan.program, groups or ())
    rows = {
        "rounds": f"{found.rounds}, {found.messages} messages",
        "on the wire": size(round(found.wire * plan.total_bytes)),
    }
    if groups:
        share = found.across / found.wire if found.wire else 0.0
        rows["across groups"] = f"{size(round(found.across * plan.total_bytes))} ({share:z.0%})"
    return rows


def _show_book(artifact: Artifact, source: str, everything: bool) -> Iterable[RenderableType]:
    book = PlanBook.from_artifact(artifact, source)
    groups = "none" if book.groups is None else " ".join(str(list(g)) for g in book.groups)
    yield _facts(
        "plan book",
        {
            "topology": f"{book.topology.name}, {book.topology.ranks} ranks, "
            f"{book.topology.digest[:12]}",
            "groups": groups,
            "programs": str(len(book.programs)),
        },
        everything=everything,
    )
    yield from entry_tables(book.entries)


def _show_head(artifact: Artifact, _source: str, _everything: bool) -> Iterable[RenderableType]:
    head = {name: _text(value) for name, value in artifact.head.items()}
    sizes = {
        f"table {name}": f"{len(next(iter(table.values()), ()))} rows of {', '.join(table)}"
        for name, table in artifact.tables.items()
    }
    yield _facts("content", {**head, **sizes})


_SHOWN: dict[str, Callable[[Artifact, str, bool], Iterable[RenderableType]]] = {
    "topology": _show_topology,
    "profile": _show_profile,
    "plan": _show_plan,
    "plan-book": _show_book,
}


def _topology_tables(topology: Topology, everything: bool) -> Iterable[RenderableType]:
    facts = {"name": topology.name, "ranks": _homes(topology, everything)}
    yield _facts("topology", facts, everything=everything)
    yield from _rows(
        "links",
        ("from", "to", "alpha", "rate"),
        [(k.src, k.dst, duration(k.alpha_us), rate(k.beta_us_per_mb)) for k in topology.links],
        everything=everything,
    )
    yield from _rows(
        "shared capacities",
        ("name", "rate", "links"),
        [
            (
                s.name,
                "at least " * s.at_least + rate(s.beta_us_per_mb),
                _pairs(topology, s.links, everything),
            )
            for s in topology.shared
        ],
        everything=everything,
    )


def _homes(topology: Topology, everything: bool) -> str:
    """Return the ranks by host, runs of them as ranges."""
    texts: list[str] = []
    for host, run in groupby(range(topology.ranks), key=lambda rank: topology.rank_host[rank]):
        ranks = list(run)
        span = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        texts.append(f"{span} on {topology.hosts[host]}")
    shown = texts if everything else texts[:_LINKS]
    more = f", and {len(texts) - len(shown)} more" if len(shown) < len(texts) else ""
    return ", ".join(shown) + more


def _pairs(topology: Topology, links: tuple[int, ...], everything: bool) -> str:
    shown = links if everything else links[:_LINKS]
    pairs = ", ".join(f"{topology.links[i].src}>{topology.links[i].dst}" for i in shown)
    return pairs if len(shown) == len(links) else f"{pairs} and {len(links) - len(shown)} more"


def _facts(title: str, rows: dict[str, str], *, everything: bool = False) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in islice(rows.items(), None if everything else _LINKS):
        table.add_row(_cut(name, everything), _cut(value, everything))
    if len(rows) > _LINKS and not everything:
        table.add_row("...", f"{len(rows) - _LINKS} more: --all shows them")
    return table


def _rows(
    title: str,
    columns: Iterable[str],
    rows: Sequence[Iterable[object]],
    *,
    everything: bool,
) -> Iterator[RenderableType]:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for column in columns:
        is_text = column in ("collective", "generator", "note", "name", "links")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows if everything else rows[:_LINKS]:
        table.add_row(*(_cut(str(cell), everything) for cell in row))
    yield table
    if len(rows) > _LINKS and not everything:
        yield f" ... {len(rows) - _LINKS} more {title}: --all shows them"


def _cut(text: str, everything: bool) -> str:
    return text if everything or len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
