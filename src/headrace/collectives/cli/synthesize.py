"""``headrace collectives synthesize``: the best plan for one collective of one size."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

import headrace
from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.options import Seed, output_option
from headrace.cli.progress import progress
from headrace.collectives.cli.export import RuntimeName
from headrace.collectives.cli.method import (
    CostModelName,
    EffortLevel,
    Model,
    Root,
    SearchEffort,
    TotalBytes,
    charged,
    check_root,
)
from headrace.collectives.cli.network import read_network
from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.errors import InputError
from headrace.units import duration, parse_size, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.collectives.plan.generators.orbits.build import OrbitFound
    from headrace.collectives.plan.plan import Plan
    from headrace.collectives.plan.request import Method
    from headrace.topology import Topology

_MOST_WITHOUT = 8
"""Most chunks a block that are tried for a first plan within a runtime's limits."""

_LARGE = 300
"""Ranks beyond which plans are kept as orbits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisResult:
    """The best plan of one collective of one size, with its certificate."""

    file: WrittenFile
    collective: str
    ranks: int
    root: int
    total_bytes: int
    generator: str
    model: str
    predicted_us: float
    bound_us: float
    gap: float
    proof: str


def synthesize_command(
    source: Annotated[
        Path, typer.Argument(help="A topology or a measured profile.", metavar="TOPOLOGY")
    ],
    output: Annotated[Path, output_option("File to write: the plan.")],
    collective: Annotated[
        Collective | None, typer.Option(help="Collective.", show_default="allreduce")
    ] = None,
    demand: Annotated[
        Path | None,
        typer.Option(
            help="Instead: a demand (JSON), for all_to_all_v and custom collectives; see "
            "docs/plan-format.md."
        ),
    ] = None,
    total: TotalBytes = "1M",
    root: Root = 0,
    sketch: Annotated[
        Path | None,
        typer.Option(help="Communication sketch (JSON) that narrows the search down."),
    ] = None,
    cost_model: CostModelName = Model.FULL,
    runtime: Annotated[
        RuntimeName | None,
        typer.Option(
            help="Runtime whose limits apply, to chunks a block, too: msccl, msccl-executor-nccl, "
            "mscclpp, or strictest for all of them."
        ),
    ] = None,
    effort: SearchEffort = EffortLevel.NORMAL,
    seed: Seed = 0,
) -> SynthesisResult:
    """Search for the best plan for one collective, prove it, compare it with the lower bound.

    The candidates of all generators are compared under one cost model; the plan records the best,
    the reason, and the others' predictions. Ctrl-C ends the search early: the best so far is proven
    and written. Beyond 300 ranks the plan is made for one rank and mapped to the others by the
    network's symmetry, in seconds: there Ctrl-C leaves none.

    Example: headrace collectives synthesize cluster.topology --size 16MiB -o best.plan
    """
    from headrace.collectives.plan.generators.table import (
        ALL_GENERATORS,
        custom_generators,
        sketch_generator,
    )
    from headrace.collectives.plan.portfolio import plan_collective

    custom_demand = _demand(demand, collective, root)
    if custom_demand is not None:
        collective, root = custom_demand.collective, custom_demand.root
        custom_demand = None if collective in STANDARD else custom_demand
    collective = collective or Collective.ALLREDUCE
    check_root(collective, root)
    total_bytes = parse_size(total, "--size")
    topology, groups = read_network(source)
    topology, method = charged(topology, cost_model, effort, seed)
    if (
        topology.ranks > _LARGE
        and sketch is None
        and custom_demand is None
        and collective not in ROOTED
    ):
        if runtime is not None:
            raise InputError(
                f"{source}: has {topology.ranks} ranks: plans beyond {_LARGE} are kept by symmetry "
                "and are not exported; leave --runtime out"
            )
        if cost_model is Model.EXECUTOR:
            raise InputError(
                f"{source}: has {topology.ranks} ranks: plans beyond {_LARGE} are made by the full "
                "cost model: leave --cost-model out, or give table"
            )
        return _synthesize_orbits(topology, collective, total_bytes, output)
    generators = ALL_GENERATORS if sketch is None else (sketch_generator(sketch),)
    if custom_demand is not None:
        generators = custom_generators(sketch)
    with progress(terminal(stderr=True), visible=True) as report:

        def planned(method: "Method") -> "Plan":
            return plan_collective(
                topology,
                collective,
                total_bytes,
                groups=groups,
                root=root,
                generators=generators,
                method=method,
                given=custom_demand,
                progress=report,
            )

        plan = planned(method) if runtime is None else _within(planned, method, runtime)
    plan.save(output, {"headrace": headrace.__version__, "seed": seed, "effort": effort.value})
    console = terminal()
    console.print(_summary(plan))
    console.print(f"Wrote [bold]{text_of(output)}[/].", soft_wrap=True)
    return result_of(
        SynthesisResult,
        plan,
        file=WrittenFile.at(output),
        collective=plan.program.demand.collective.value,
        ranks=plan.program.demand.ranks,
        root=plan.program.demand.root,
        model=plan.model.name,
        bound_us=plan.bound.total_us,
        proof=plan.proof.program_digest,
    )


def _within(planned: "Callable[[Method], Plan]", method: "Method", runtime: RuntimeName) -> "Plan":
    """Return the fastest plan within a runtime's limits; raises ProgramError if there is none.

    The number of chunks doubles until that has been no faster two times in a row, or an interrupt.
    """
    from headrace.collectives.export.within import chunk_counts, forbidden

    best: Plan | None = None
    reasons: list[str] = []
    worse = 0
    for chunks in chunk_counts():
        limited = replace(method, chunks=chunks, forbidden=lambda p: forbidden(p, runtime.value))
        try:
            plan = planned(limited)
        except ProgramError as error:
            reasons.append(str(error))
            plan = None
        except KeyboardInterrupt:  # before a first program of so many chunks
            if best is None:
                raise
            break
        if plan is not None and (best is None or plan.predicted_us < best.predicted_us):
            best, worse = plan, 0
        elif best is not None or chunks >= _MOST_WITHOUT:
            worse += 1
        if worse >= 2 or (plan is not None and _interrupted(plan)):
            break
    if best is None:
        raise ProgramError(f"no plan for runtime {runtime.value}: {reasons[0]}")
    return best


def _demand(path: Path | None, collective: Collective | None, root: int) -> Demand | None:
    """Read the demand of --demand, if given."""
    if path is None:
        if collective is not None and collective not in STANDARD:
            raise InputError(
                f"--collective {collective} needs a demand: leave it out and give one with "
                "--demand FILE.json"
            )
        return None
    if collective is not None or root:
        raise InputError("--demand has collective and root: leave --collective and --root out")
    from headrace.collectives.custom import demand_from_json

    demand = demand_from_json(path)
    if demand.collective in STANDARD and demand.chunks > 1:
        raise InputError(
            f"{path}: field 'chunks' is {demand.chunks}: planning chooses; leave it out"
        )
    return demand


def _synthesize_orbits(
    topology: "Topology", collective: Collective, total_bytes: int, output: Path
) -> SynthesisResult:
    from headrace.collectives.plan.generators.orbits.build import plan_orbits

    console = terminal()
    with terminal(stderr=True).status(f"{topology.ranks} ranks: planning for one, by symmetry"):
        orbit_plan = plan_orbits(topology, collective, total_bytes)
    certificate = {
        "headrace": headrace.__version__,
        "topology": topology.digest,
        "model": "full",
        "total_bytes": total_bytes,
        "predicted_us": orbit_plan.predicted_us,
        "bound_us": orbit_plan.bound.total_us,
    }
    orbit_plan.plan.save(output, certificate)
    origin = f"orbits, the best of {orbit_plan.tried}"
    demand = f"{collective} of {topology.ranks} ranks"
    console.print(
        _facts(demand, total_bytes, origin, "full", orbit_plan, orbit_plan.proof.plan_digest)
    )
    console.print(f"Wrote [bold]{text_of(output)}[/].", soft_wrap=True)
    return result_of(
        SynthesisResult,
        orbit_plan,
        file=WrittenFile.at(output),
        collective=collective.value,
        ranks=topology.ranks,
        root=0,
        total_bytes=total_bytes,
        generator="orbits",
        model="full",
        bound_us=orbit_plan.bound.total_us,
        proof=orbit_plan.proof.plan_digest,
    )


def _summary(plan: "Plan") -> Table:
    demand = plan.program.demand
    origin = f"{plan.generator}, {demand.chunks} chunks a block: {plan.why}"
    of = f"{demand.collective} of {demand.ranks} ranks"
    digest = plan.proof.program_digest
    table = _facts(of, plan.total_bytes, origin, plan.model.name, plan, digest)
    for row in plan.candidates:
        if row.note.startswith(("failed:", "stopped:")):
            table.add_row(row.generator, row.note)
    if cut := _interrupted(plan):
        table.add_row("interrupted", f"not finished, or skipped: {', '.join(cut)}")
    return table


def _interrupted(plan: "Plan") -> list[str]:
    """Return the generators that Ctrl-C ended, or that did not begin."""
    return [row.generator for row in plan.candidates if row.note == "interrupted"]


def _facts(
    of: str,
    total_bytes: int,
    origin: str,
    model: str,
    synthesized: "Plan | OrbitFound",
    digest: str,
) -> Table:
    table = Table(box=None, show_header=False)
    table.add_row("plan", f"{of}, {size(total_bytes)}")
    table.add_row("made by", origin)
    table.add_row("predicted", f"{duration(synthesized.predicted_us)} ({model} model)")
    above = f"so at most {synthesized.gap:z.1%} above the best"
    table.add_row("bound", f"{duration(synthesized.bound.total_us)}, {above}")
    table.add_row("proof", digest[:12])
    return table
