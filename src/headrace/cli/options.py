"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

import headrace.artifact as artifact_io
from headrace.settings import Settings


def output_option(text: str) -> Any:
    """Return the option for the file that a command writes: ``-o``.

    It is checked before everything else, so that no command works first and then cannot write.
    Of the ranks of a job, rank 0 writes.
    """
    return typer.Option("--output", "-o", help=text, callback=_checked, is_eager=True)


def _checked(output: Path | None) -> Path | None:
    if output is not None and not Settings.from_environment().rank:
        artifact_io.check_target(output)
    return output


Order = Annotated[
    str,
    typer.Option(help="Hosts of the ranks: rack, interleaved, random, or names by commas."),
]

Seed = Annotated[int | None, typer.Option(help="For --order random: the same seed, same order.")]
