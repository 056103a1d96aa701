"""Options that several commands have."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import headrace.artifact as artifact_io
from headrace.errors import InputError
from headrace.settings import Settings

_OUTPUTS = ("output", "log")


def output_option(text: str, *names: str) -> Any:
    """Return the option for a file that a command writes; default: ``-o``.

    It is checked before everything else, so that no command works first and then cannot write.
    Of the ranks of a job, rank 0 writes.
    """
    names = names or ("--output", "-o")
    return typer.Option(*names, help=text, callback=_checked, is_eager=True)


def _checked(output: Path | None) -> Path | None:
    if output is not None and not Settings.from_environment().rank:
        artifact_io.check_target(output)
    return output


def check_outputs(given: Mapping[str, Any]) -> None:
    """Raise InputError if a parameter of `_OUTPUTS` is the same file as another one."""
    for name in _OUTPUTS:
        output = given.get(name)
        others = [each for other, each in given.items() if other != name]
        if isinstance(output, Path) and output.resolve() in map(_resolved, _flat(others)):
            raise InputError(f"{output}: is read by this command, too: needs another name")


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else [value]


def _resolved(value: Any) -> Path | None:
    return value.resolve() if isinstance(value, Path) else None


Order = Annotated[
    str,
    typer.Option(help="Hosts of the ranks: rack, interleaved, random, or names by commas."),
]

Seed = Annotated[int | None, typer.Option(help="For --order random: the same seed, same order.")]
