"""``headrace embeddings measure``: which rows batches access, and what each design moves."""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, terminal, text_of, warn_if_busy
from headrace.cli.options import check_output, count_option, output_option, with_options
from headrace.cli.progress import progress
from headrace.embeddings.data.format_names import FormatName
from headrace.embeddings.errors import ExampleError
from headrace.extras import require
from headrace.units import parse_count

if TYPE_CHECKING:
    from headrace.embeddings.data.files import FileLayout
    from headrace.embeddings.data.rejects import Rejects
    from headrace.embeddings.measure.rates import MeasuredBatches
    from headrace.embeddings.profile import EmbeddingProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Format of files that are read for their ids.

    Attributes
    ----------
    name : None: guessed from how the first file begins.
    labelled : whether Criteo's lines have a label.
    ids : patterns of Parquet columns, by commas.
    """

    name: FormatName | None
    labelled: bool
    ids: str

    def name_of(self, path: Path) -> FormatName:
        """Return the name of a file's format; print one that is guessed."""
        from headrace.embeddings.data.guess import guess_format

        if self.name is not None:
            return self.name
        name, reason = guess_format(path)
        terminal().print(f"{text_of(path)} is read as {name}: {reason}.", soft_wrap=True)
        return name

    def layout(self, name: FormatName, path: Path) -> "FileLayout":
        """Return the layout of files of a format, of which `path` is one.

        Raises
        ------
        ExampleError : no columns of a Parquet file are named, or it has none of the names; an
            option is that of another format.
        """
        from headrace.embeddings.data.avazu import AvazuFormat
        from headrace.embeddings.data.criteo import CriteoFormat
        from headrace.embeddings.data.parquet import ParquetFormat, matching_columns

        if name != "parquet" and self.ids:
            raise ExampleError(f"{path} is read as {name}: --ids is for columns of Parquet files")
        if name != "criteo" and not self.labelled:
            raise ExampleError(f"{path} is read as {name}: --unlabelled is for lines of criteo")
        if name == "criteo":
            return CriteoFormat(labelled=self.labelled)
        if name == "avazu":
            return AvazuFormat(labelled=False)
        patterns = [pattern for pattern in self.ids.split(",") if pattern]
        if not patterns:
            columns = ", ".join(matching_columns(path, ["*"]))
            raise ExampleError(f"{path}: --ids needs names of columns of ids; there are {columns}")
        return ParquetFormat(ids=matching_columns(path, patterns), label=None)


def format_options(
    file_format: Annotated[
        FormatName | None,
        typer.Option("--format", help="Format of the file; guessed from how the first one begins."),
    ] = None,
    unlabelled: Annotated[bool, typer.Option(help="Criteo's lines have no label.")] = False,
    ids: Annotated[str, typer.Option(help="Columns of ids in Parquet files, as C1,C2 or C*.")] = "",
) -> FormatOptions:
    """Return the options of the files' format."""
    return FormatOptions(name=file_format, labelled=not unlabelled, ids=ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResult:
    """Rows that a step moves between trainers, and those before the next step."""

    rows: float
    critical_rows: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessResult:
    """Accesses of batches to rows; transfers by design."""

    file: WrittenFile
    batches: int
    batch: int
    trainers: int
    lookahead: int
    rows: float
    transfers: dict[str, TransferResult]
    rejected: int


def reject_options(
    rejects: Annotated[
        Path | None, output_option("File for lines that are rejected.", "--rejects")
    ] = None,
    most_rejected: Annotated[
        float, typer.Option(help="Share of lines that may be rejected.", min=0.0, max=1.0)
    ] = 0.0,
) -> "partial[Rejects]":
    """Return the options of rejected lines, as a function that opens their file."""
    from headrace.embeddings.data.rejects import Rejects

    return partial(Rejects, rejects, most_rejected)


@with_options(form=format_options, rejects=reject_options)
def access_command(
    data: Annotated[
        list[Path], typer.Argument(help="Files of examples, in their order, or folders of them.")
    ],
    output: Annotated[Path, output_option("File to write: the embedding profile.")],
    *,
    batch: Annotated[str, count_option("Examples of a batch, of all trainers")] = "16384",
    trainers: Annotated[int, typer.Option(help="Number of trainers.", min=1, max=32)] = 4,
    lookahead: Annotated[
        int, typer.Option(help="Batches to search for a row's next use, at most.", min=2)
    ] = 100,
    batches: Annotated[
        int | None, typer.Option(help="To read; twice the lookahead by default.", min=4)
    ] = None,
    form: FormatOptions,
    dim: Annotated[int, typer.Option(help="Numbers of a row, for --rates.", min=1)] = 48,
    rates: Annotated[
        bool,
        typer.Option(help="Measure a job's processor time, for predicted steps; needs torch."),
    ] = True,
    rejects: "partial[Rejects]",
) -> AccessResult:
    """Measure how often and how soon again batches access embedding rows.

    Example: headrace embeddings measure clicks.tsv -o clicks.profile
    """
    from headrace.embeddings.cli.show import access_tables
    from headrace.embeddings.data.examples import in_batches
    from headrace.embeddings.data.files import files_of
    from headrace.embeddings.measure.accesses import measure_accesses
    from headrace.job.load import LoadWatch

    measured_batches = _measured_batches() if rates else None  # fails first, without torch
    examples = parse_count(batch, "--batch")
    paths = files_of(data)
    for written in (output, rejects.args[0]):
        check_output(written, paths)  # of folders, too
    name = form.name_of(paths[0])
    layout = form.layout(name, paths[0])
    provenance: dict[str, Any] = {"data": [str(path) for path in paths], "format": name}
    watch = LoadWatch()
    with progress(terminal(stderr=True), visible=True) as report, closing(rejects()) as rejected:
        read = in_batches(layout.read(paths, rejected), examples)
        timed = None if measured_batches is None else measured_batches(read)
        profile = measure_accesses(
            read if timed is None else iter(timed),
            trainers=trainers,
            lookahead=lookahead,
            most_batches=2 * lookahead if batches is None else batches,
            progress=report,
        )
        if timed is not None:
            profile = replace(profile, processor_seconds=timed.processor_seconds(trainers, dim))
            provenance |= watch.load().to_provenance()
    profile.save(output, {**provenance, "rejected": rejected.rejected})
    print_written(output)
    for table in access_tables(profile, everything=False):
        terminal().print(table)
    warn_if_busy(provenance)
    return _result(profile, output, rejected.rejected)


def _measured_batches() -> "type[MeasuredBatches]":
    """Return the class of batches whose processor time is measured, which needs torch."""
    require("torch", "torch", "measuring processor time, which --no-rates leaves out,")
    from headrace.embeddings.measure.rates import MeasuredBatches

    return MeasuredBatches


def _result(profile: "EmbeddingProfile", output: Path, rejected: int) -> AccessResult:
    transfers = {
        name.value: result_of(TransferResult, moved) for name, moved in profile.transfers.items()
    }
    return result_of(
        AccessResult,
        profile,
        file=WrittenFile.at(output),
        transfers=transfers,
        rejected=rejected,
    )
