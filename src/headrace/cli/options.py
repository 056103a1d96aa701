"""Options that several commands have."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

import headrace.artifact as artifact_io
from headrace.errors import InputError
from headrace.settings import Settings


def output_option(text: str, *names: str) -> Any:
    """Return the option for a file that a command writes; default: ``-o``.

    It is checked before everything else, so that no command works first and then cannot write.
    Of the ranks of a job, rank 0 writes.
    """
    names = names or ("--output", "-o")
    return typer.Option(*names, help=text, callback=_checked, is_eager=True)


def flag(name: str, text: str) -> Any:
    """Return an option that is given or not, without a ``--no-`` form of its own."""
    return typer.Option(name, help=text)


_EXAMPLES = {
    "SIZE": "64MiB or 64MB",
    "TIME": "30s or 5min",
    "RATE": "10Gbit/s or 1.25GB/s",
    "COUNT": "250K or 6M",
}
"""By the name that the help has for a quantity; see `headrace.units`."""


def _quantity(metavar: str, text: str, name: str, default: str | None) -> Any:
    return typer.Option(
        *([name] if name else []),
        metavar=metavar,
        help=f"{text}, such as {_EXAMPLES[metavar]}.",
        show_default=True if default is None else default,
    )


def size_option(text: str, name: str = "", *, default: str | None = None) -> Any:
    """Return an option of bytes with a unit, for `headrace.units.parse_size`.

    Parameters
    ----------
    text : help, without its last full stop.
    name : the option; that of the parameter if empty.
    default : in words.
    """
    return _quantity("SIZE", text, name, default)


def time_option(text: str, name: str = "", *, default: str | None = None) -> Any:
    """Return an option of a time with a unit, for `parse_time`; see `size_option`."""
    return _quantity("TIME", text, name, default)


def rate_option(text: str, name: str = "", *, default: str | None = None) -> Any:
    """Return an option of bits or bytes per second, for `parse_bandwidth`; see `size_option`."""
    return _quantity("RATE", text, name, default)


def count_option(text: str, name: str = "", *, default: str | None = None) -> Any:
    """Return an option of a number with a unit of 1000, for `parse_count`; see `size_option`."""
    return _quantity("COUNT", text, name, default)


def plan_option(text: str) -> Any:
    """Return the option for a plan that a verb follows."""
    return typer.Option(help=f"Plan to follow: {text}.")


def topology_option(text: str) -> Any:
    """Return the option for a network: a topology, a measured profile or a plan book."""
    return typer.Option(
        "--topology", help=f"Network: a topology, measured profile or plan book, {text}."
    )


def count(text: str, *, least: int, default: str) -> Any:
    """Return an option of a number from `least` on, whose default the help says in words."""
    return typer.Option(help=text, min=least, show_default=default)


def data_sheet(text: str) -> Any:
    """Return the option for a file with a device's data sheet; see `headrace.roofline`."""
    return typer.Option(
        metavar="FILE",
        help=f"{text}: a JSON object of name, flops_per_s, bytes_per_s, launch_us and, for "
        "offloading, host_bytes_per_s.",
    )


def _checked(output: Path | None) -> Path | None:
    if output is not None and not Settings.from_environment().rank:
        artifact_io.check_target(output)
    return output


def with_options(**readers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Give a command the options of functions, whose results it takes.

    Parameters
    ----------
    readers : by keyword-only parameter of the command: the function whose parameters are options in
        its place, and which is called with their values.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command)
        options = {name: inspect.signature(reader).parameters for name, reader in readers.items()}

        @wraps(command)
        def run(**arguments: Any) -> Any:
            for name, reader in readers.items():
                arguments[name] = reader(
                    **{option: arguments.pop(option) for option in options[name]}
                )
            return command(**arguments)

        parameters = [
            option
            for name, parameter in signature.parameters.items()
            for option in (
                [o.replace(kind=parameter.kind) for o in options[name].values()]
                if name in options
                else [parameter]
            )
        ]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__annotations__["return"] = command.__annotations__["return"]
        run.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
        return run

    return decorate


def keeping_inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that refuses to write to a file that another parameter names.

    That is an input, or another output, which would replace it.
    """

    @wraps(command)
    def run(**arguments: Any) -> Any:
        hints = get_type_hints(command, include_extras=True)
        outputs = {name for name in arguments if _is_output(hints.get(name))}
        inputs = [argument for name, argument in arguments.items() if name not in outputs]
        for name in outputs:
            check_output(arguments[name], _flat(inputs))
        check_apart(arguments[name] for name in outputs)
        return command(**arguments)

    return run


def check_output(output: Path | None, inputs: Iterable[Any]) -> None:
    """Raise InputError if `output` is one of the paths in `inputs`."""
    paths = [path for path in inputs if isinstance(path, Path)]
    if output is not None and any(_is_one_file(output, path) for path in paths):
        raise InputError(f"{output}: is read by this command, too: needs another name")


def check_apart(outputs: Iterable[Path | None]) -> None:
    """Raise InputError if two outputs are one file."""
    for first, second in combinations([path for path in outputs if path is not None], 2):
        if _is_one_file(first, second):
            raise InputError(f"{second}: is written twice by this command: needs another name")


def _is_one_file(first: Path, second: Path) -> bool:
    """Return whether two paths are of one file: hard links, too, which some outputs truncate."""
    try:
        return first.samefile(second)
    except OSError:  # one is not there yet
        return os.path.realpath(first) == os.path.realpath(second)


def _is_output(hint: Any) -> bool:
    """Return whether a parameter's annotation has an `output_option`."""
    return any(
        getattr(annotation, "callback", None) is _checked for annotation in get_args(hint)[1:]
    )


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else [value]


Order = Annotated[
    str,
    typer.Option(help="Hosts of the ranks: rack, interleaved, random, or names by commas."),
]

Seed = Annotated[
    int, typer.Option(min=0, max=(1 << 31) - 1, help="Equal seeds give equal results.")
]
"""At most the largest that every solver and search takes."""

TestbedFile = Annotated[
    Path | None,
    typer.Option(help="TOML file of a testbed to bring up for the command."),
]


def refuse_without_effect(options: Mapping[str, object], reason: str) -> None:
    """Raise InputError for the first option that is given where nothing uses it.

    Parameters
    ----------
    options : by name; None or False: not given.
    """
    for name, option in options.items():
        if option is not None and option is not False:
            raise InputError(f"{name} has no effect {reason}")


def check_order(order: str, seed: int, testbed: Path | None) -> None:
    """Raise InputError if hosts are ordered where no testbed has any."""
    if testbed is None:
        refuse_without_effect(
            {"--order": order != "rack", "--seed": seed != 0}, "without --testbed, which has hosts"
        )


Bandwidth = Annotated[str | None, rate_option("Rate of each host's link in each direction")]
