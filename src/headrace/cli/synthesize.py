"""``headrace collectives synthesize``: the best plan for one collective of one size."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import headrace
import headrace.artifact as artifact_io
from headrace.cli.format import duration, parse_size, size
from headrace.cli.network import read_network
from headrace.cli.progress import progress
from headrace.collectives.demand import Collective

if TYPE_CHECKING:
    from headrace.collectives.plan.plan import Plan
    from headrace.topology import Topology

_LARGE = 300
"""Ranks beyond which plans are kept as orbits."""


class Model(StrEnum):
    """Cost models by the names users give."""

    FULL = "full"
    TABLE = "table"
    EXECUTOR = "executor"


class Effort(StrEnum):
    """How much searching."""

    QUICK = "quick"
    NORMAL = "normal"
    THOROUGH = "thorough"


def synthesize(
    source: Annotated[
        Path, typer.Argument(help="A topology or a measured profile.", metavar="TOPOLOGY")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the plan.")],
    collective: Annotated[Collective, typer.Option(help="What to plan.")] = Collective.ALLREDUCE,
    total: Annotated[
        str,
        typer.Option(
            "--size",
            help="Bytes of the whole data buffer (the gathered output, the reduced vector, the "
            "all-to-all input), such as 512K, 16M or 1G, in powers of 1024; or 16MB, of 1000.",
        ),
    ] = "1M",
    root: Annotated[int, typer.Option(help="For broadcast, reduce, gather and scatter.")] = 0,
    sketch: Annotated[
        Path | None,
        typer.Option(help="Communication sketch (JSON) that narrows the search down."),
    ] = None,
    model: Annotated[
        Model,
        typer.Option(
            help="What is charged: full (as on GPUs), table (full without alpha inside a host), "
            "executor (headrace's own, on TCP)."
        ),
    ] = Model.FULL,
    effort: Annotated[Effort, typer.Option(help="How much searching.")] = Effort.NORMAL,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal plans.")] = 0,
) -> None:
    """Search for the best plan for one collective, prove it, compare it with the lower bound.

    Templates and synthesizers compete under one cost model; the plan says who won, why, and what
    the others got. Ctrl-C ends the search early: the best so far is proven and written.
    Beyond 300 ranks the plan is made for one rank and turned by the network's symmetry.
    """
    from headrace.collectives.plan.cost_model import EXECUTOR, FULL
    from headrace.collectives.plan.generators import Method
    from headrace.collectives.plan.portfolio import plan_collective
    from headrace.collectives.plan.synthesizers import EVERYONE, sketched
    from headrace.collectives.run.search import NativeSearch
    from headrace.topology import without_local_alpha

    artifact_io.check_target(output)
    topology, groups = read_network(source)
    if model is Model.TABLE:
        topology = without_local_alpha(topology)
    if topology.ranks > _LARGE and sketch is None:
        _synthesize_orbits(topology, collective, parse_size(total), output)
        return
    everyone = EVERYONE if sketch is None else (sketched(sketch),)
    with progress(Console(stderr=True), visible=True) as report:
        plan = plan_collective(
            topology,
            collective,
            parse_size(total),
            groups=groups,
            root=root,
            generators=everyone,
            method=Method(
                model=EXECUTOR if model is Model.EXECUTOR else FULL,
                engine=NativeSearch(),
                seed=seed,
                effort=effort.value,
            ),
            progress=report,
        )
    plan.save(output, {"headrace": headrace.__version__, "seed": seed, "effort": effort.value})
    console = Console()
    console.print(_summary(plan))
    console.print(f"Wrote [bold]{output}[/].", soft_wrap=True)


def _synthesize_orbits(
    topology: "Topology", collective: Collective, total_bytes: int, output: Path
) -> None:
    from headrace.collectives.plan.orbits import plan_orbits

    console = Console()
    with Console(stderr=True).status(f"{topology.ranks} ranks: planning for one, by symmetry"):
        found = plan_orbits(topology, collective, total_bytes)
    certificate = {
        "headrace": headrace.__version__,
        "topology": topology.digest,
        "model": "full",
        "total_bytes": total_bytes,
        "predicted_us": found.predicted_us,
        "bound_us": found.bound.total_us,
    }
    found.plan.save(output, certificate)
    table = Table(box=None, show_header=False)
    for name, text in (
        ("plan", f"{collective} of {topology.ranks} ranks, {size(total_bytes)}"),
        ("made by", f"orbits, the best of {found.tried}"),
        ("predicted", f"{duration(found.predicted_us)} (full model)"),
        ("bound", f"{duration(found.bound.total_us)}, so at most {found.gap:.1%} above the best"),
        ("proof", found.proof.plan_digest[:12]),
    ):
        table.add_row(name, text)
    console.print(table)
    console.print(f"Wrote [bold]{output}[/].", soft_wrap=True)


def _summary(plan: "Plan") -> Table:
    demand = plan.program.demand
    table = Table(box=None, show_header=False)
    for name, text in (
        ("plan", f"{demand.collective} of {demand.ranks} ranks, {size(plan.total_bytes)}"),
        ("made by", f"{plan.maker}, {demand.chunks} chunks a block: {plan.why}"),
        ("predicted", f"{duration(plan.predicted_us)} ({plan.model.name} model)"),
        ("bound", f"{duration(plan.bound.total_us)}, so at most {plan.gap:.1%} above the best"),
        ("proof", plan.proof.program_digest[:12]),
    ):
        table.add_row(name, text)
    return table
