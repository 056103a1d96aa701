"""``headrace embeddings measure``: which rows batches access, and what each design moves."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option
from headrace.cli.progress import progress
from headrace.embeddings.data.format_names import FormatName
from headrace.embeddings.errors import ExampleError
from headrace.units import parse_count, size

if TYPE_CHECKING:
    from headrace.embeddings.data.files import FileLayout


def access_command(
    data: Annotated[
        list[Path], typer.Argument(help="Files of examples, in their order, or folders of them.")
    ],
    output: Annotated[Path, output_option("File for the embedding profile.")],
    batch: Annotated[str, typer.Option(help="Examples of a batch, of all trainers.")] = "16384",
    trainers: Annotated[int, typer.Option(help="That share a batch.", min=1, max=32)] = 4,
    lookahead: Annotated[
        int, typer.Option(help="Batches to search for a row's next use, at most.", min=2)
    ] = 100,
    batches: Annotated[
        int | None, typer.Option(help="To read; twice the lookahead by default.", min=4)
    ] = None,
    file_format: Annotated[
        FormatName | None,
        typer.Option("--format", help="Of the files; guessed from how the first one begins."),
    ] = None,
    unlabelled: Annotated[bool, typer.Option(help="Criteo's lines have no label.")] = False,
    ids: Annotated[str, typer.Option(help="Columns of ids in Parquet files, as C1,C2 or C*.")] = "",
    dim: Annotated[int, typer.Option(help="Numbers of a row, for --rates.", min=1)] = 48,
    rates: Annotated[
        bool,
        typer.Option(help="Measure the processor time of a job's processes, for predicted steps."),
    ] = True,
    rejects: Annotated[
        Path | None, output_option("File for lines that are rejected.", "--rejects")
    ] = None,
    most_rejected: Annotated[
        float, typer.Option(help="Share of lines that may be rejected.", min=0.0, max=1.0)
    ] = 0.0,
) -> None:
    """Measure how often and how soon again batches access embedding rows."""
    from headrace.embeddings.cli.show import access_tables
    from headrace.embeddings.data.examples import in_batches
    from headrace.embeddings.data.files import files_of
    from headrace.embeddings.data.guess import guess_format
    from headrace.embeddings.data.rejects import Rejects
    from headrace.embeddings.measure.accesses import measure_accesses
    from headrace.embeddings.measure.rates import MeasuredBatches

    examples = parse_count(batch, "--batch")
    paths = files_of(data)
    name = file_format
    if name is None:
        name, reason = guess_format(paths[0])
        terminal().print(f"{text_of(paths[0])} is read as {name}: {reason}.", soft_wrap=True)
    layout = _layout(name, paths[0], ids, labelled=not unlabelled)
    with (
        progress(terminal(stderr=True), visible=True) as report,
        closing(Rejects(rejects, most_rejected)) as rejected,
    ):
        timed = MeasuredBatches(in_batches(layout.read(paths, rejected), examples))
        profile = measure_accesses(
            iter(timed),
            trainers=trainers,
            lookahead=lookahead,
            most_batches=2 * lookahead if batches is None else batches,
            progress=report,
        )
        if rates:
            seconds = timed.processor_seconds(trainers, dim)
            profile = replace(profile, processor_seconds=seconds)
    provenance = {"data": [str(path) for path in paths], "format": name}
    profile.save(output, {**provenance, "rejected": rejected.rejected})
    terminal().print(f"Wrote {text_of(output)} ({size(output.stat().st_size)}).", soft_wrap=True)
    for table in access_tables(profile, everything=False):
        terminal().print(table)


def _layout(name: FormatName, path: Path, ids: str, *, labelled: bool) -> "FileLayout":
    """Return the layout of files that are read for their ids."""
    from headrace.embeddings.data.avazu import AvazuFormat
    from headrace.embeddings.data.criteo import CriteoFormat
    from headrace.embeddings.data.parquet import ParquetFormat, matching_columns

    if name == "criteo":
        return CriteoFormat(labelled=labelled)
    if name == "avazu":
        return AvazuFormat(labelled=False)
    patterns = [pattern for pattern in ids.split(",") if pattern]
    if not patterns:
        columns = ", ".join(matching_columns(path, ["*"]))
        raise ExampleError(f"{path}: --ids needs names of columns of ids; there are {columns}")
    return ParquetFormat(ids=matching_columns(path, patterns), label=None)
