"""``headrace embeddings generate``: made clicks, where a job's own data may not leave."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.answers import WrittenFile
from headrace.cli.console import print_written, terminal
from headrace.cli.ending import unwound_by_signals
from headrace.cli.options import Seed, count_option, output_option
from headrace.cli.progress import progress
from headrace.embeddings.data.format_names import CriteoSet, FormatName
from headrace.embeddings.errors import ExampleError
from headrace.files import whole_file
from headrace.units import parse_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesResult:
    """Made examples."""

    file: WrittenFile
    examples: int


def generate_command(
    output: Annotated[Path, output_option("File to write: the examples.")],
    examples: Annotated[str, count_option("Examples to write")] = "100K",
    file_format: Annotated[
        FormatName,
        typer.Option("--format", help="Format of the file; Parquet has Criteo's columns."),
    ] = "criteo",
    skew: Annotated[
        str, typer.Option(help="Of accesses: uniform, zipf:ALPHA, or top:SHARE of the first 1%.")
    ] = "zipf:1.05",
    later_skew: Annotated[
        str | None, typer.Option(help="In the second half of the examples; the same by default.")
    ] = None,
    tables: Annotated[
        CriteoSet, typer.Option(help="Those of Kaggle's or the Terabyte data set; not of Avazu's.")
    ] = "kaggle",
    most_rows: Annotated[
        str | None, count_option("Of a table; up to 10M, of the Terabyte data set 293M")
    ] = None,
    seed: Seed = 0,
) -> ExamplesResult:
    """Make examples of clicks whose accesses have a given skew, and that a model can learn.

    Example: headrace embeddings generate --examples 100K -o clicks.tsv
    """
    from headrace.embeddings.data.made_files import click_source, write_clicks
    from headrace.embeddings.data.skew import parse_skew

    source = click_source(
        file_format,
        parse_skew(skew),
        later=None if later_skew is None else parse_skew(later_skew),
        criteo_set=tables,
        most_rows=None if most_rows is None else parse_count(most_rows, "--most-rows"),
        seed=seed,
    )
    count = parse_count(examples, "--examples")
    if not count:
        raise ExampleError(f"--examples is {examples!r}, needs 1 or more")
    try:
        with (
            unwound_by_signals(),  # and without the file that is not complete
            progress(terminal(stderr=True), visible=True) as report,
            whole_file(output) as file,
        ):
            for written in write_clicks(file, file_format, source, count):
                report(f"{written} of {count} examples", written / count)
    except OSError as error:
        raise ExampleError(f"{output}: cannot be written: {error.strerror}") from error
    print_written(output)
    return ExamplesResult(file=WrittenFile.at(output), examples=count)
