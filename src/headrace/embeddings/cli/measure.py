"""``headrace embeddings measure``: which rows batches access, and what each design moves."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option
from headrace.cli.progress import progress
from headrace.units import parse_count, size


def access_command(
    data: Annotated[list[Path], typer.Argument(help="Files in Criteo's format, in their order.")],
    output: Annotated[Path, output_option("File for the embedding profile.")],
    batch: Annotated[str, typer.Option(help="Examples of a batch, of all trainers.")] = "16384",
    trainers: Annotated[int, typer.Option(help="That share a batch.", min=1, max=32)] = 4,
    lookahead: Annotated[
        int, typer.Option(help="Batches to search for a row's next use, at most.", min=2)
    ] = 100,
    batches: Annotated[
        int | None, typer.Option(help="To read; twice the lookahead by default.", min=4)
    ] = None,
    unlabelled: Annotated[bool, typer.Option(help="Lines have no label.")] = False,
    rejects: Annotated[
        Path | None, output_option("File for lines that are rejected.", "--rejects")
    ] = None,
    most_rejected: Annotated[
        float, typer.Option(help="Share of lines that may be rejected.", min=0.0, max=1.0)
    ] = 0.0,
) -> None:
    """Measure how often and how soon again batches access embedding rows."""
    from headrace.embeddings.cli.show import access_tables
    from headrace.embeddings.data.criteo import CriteoFormat, read_criteo
    from headrace.embeddings.data.examples import in_batches
    from headrace.embeddings.data.rejects import Rejects
    from headrace.embeddings.measure.accesses import measure_accesses

    examples = parse_count(batch, "--batch")
    layout = CriteoFormat(labelled=not unlabelled)
    with (
        progress(terminal(stderr=True), visible=True) as report,
        closing(Rejects(rejects, most_rejected)) as rejected,
    ):
        profile = measure_accesses(
            in_batches(read_criteo(data, layout, rejected), examples),
            trainers=trainers,
            lookahead=lookahead,
            most_batches=2 * lookahead if batches is None else batches,
            progress=report,
        )
    profile.save(output, {"data": [str(path) for path in data], "rejected": rejected.rejected})
    terminal().print(f"Wrote {text_of(output)} ({size(output.stat().st_size)}).", soft_wrap=True)
    for table in access_tables(profile, everything=False):
        terminal().print(table)
