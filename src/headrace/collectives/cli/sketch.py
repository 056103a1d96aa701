"""``headrace collectives sketch``: the communication sketch that suits one collective best."""

from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

import headrace.artifact as artifact_io
from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.options import Seed, output_option
from headrace.cli.progress import progress
from headrace.collectives.cli.method import (
    EffortLevel,
    Root,
    SearchEffort,
    TotalBytes,
    check_named,
)
from headrace.collectives.cli.network import read_network
from headrace.collectives.demand import Collective
from headrace.units import duration, parse_size

if TYPE_CHECKING:
    from headrace.collectives.plan.generators.taccl.autosketch import AutoSketch

_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedSketchResult:
    """A sketch that was tried; no time where that failed, for the problem it names."""

    sketch: str
    trial_us: float | None
    total_us: float | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchResult:
    """The best sketch first, and whether time ran out."""

    file: WrittenFile
    tried: list[TriedSketchResult]
    bound_us: float
    out_of_time: bool


def sketch_command(
    source: Annotated[
        Path, typer.Argument(help="A topology or a measured profile.", metavar="TOPOLOGY")
    ],
    output: Annotated[Path, output_option("File to write: the sketch (JSON).")],
    collective: Annotated[Collective, typer.Option(help="Collective.")] = Collective.ALLREDUCE,
    total: TotalBytes = "1M",
    root: Root = 0,
    effort: SearchEffort = EffortLevel.NORMAL,
    seed: Seed = 0,
) -> SketchResult:
    """Try the sketches that a topology suggests, and write the best: to read, alter and reuse.

    'headrace collectives synthesize --sketch FILE' follows it. Ctrl-C ends the search early with
    the best so far.

    Example: headrace collectives sketch cluster.topology --size 16MiB -o sketch.json
    """
    from headrace.collectives.plan.cost.model import FULL
    from headrace.collectives.plan.generators.taccl.autosketch import autosketch
    from headrace.collectives.plan.generators.taccl.sketch.write import sketch_to_json
    from headrace.collectives.plan.request import Method, Request
    from headrace.collectives.run.synthesis import NativeSearch

    check_named(collective, root)
    topology, groups = read_network(source)
    with progress(terminal(stderr=True), visible=True) as report:
        request = Request(
            topology,
            collective,
            groups=groups,
            root=root,
            method=Method(model=FULL, engine=NativeSearch(), seed=seed, effort=effort.value),
            report=lambda text: report(text, 0.0),
        )
        searched = autosketch(request, parse_size(total, "--size"))
    artifact_io.write_file(output, sketch_to_json(searched.sketch).encode())
    console = terminal()
    console.print(_table(searched))
    if searched.struck:
        console.print("[yellow]warning:[/] out of time: another run may find another sketch.")
    console.print(f"Wrote [bold]{text_of(output)}[/].", soft_wrap=True)
    tried = [
        result_of(
            TriedSketchResult,
            row,
            sketch=row.sketch.name,
            trial_us=None if row.problem else row.trial_us,
        )
        for row in searched.tried
    ]
    bound_us = searched.synthesis.bound.total_us
    return SketchResult(
        file=WrittenFile.at(output), tried=tried, bound_us=bound_us, out_of_time=searched.struck
    )


def _table(searched: "AutoSketch") -> Table:
    table = Table(box=None)
    for name in ("sketch", "trial", "synthesized"):
        table.add_column(name)
    for row in searched.tried[:_ROWS]:
        table.add_row(
            row.sketch.name,
            row.problem or ("" if isinf(row.trial_us) else duration(row.trial_us)),
            "" if row.total_us is None else duration(row.total_us),
        )
    if len(searched.tried) > _ROWS:
        table.add_row(f"and {len(searched.tried) - _ROWS} more", "", "")
    synthesis = searched.synthesis
    table.add_row("bound of the best's links", "", duration(synthesis.bound.total_us))
    return table
