"""The ``headrace`` command: gathers the sub-commands and turns errors into one line."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import headrace
from headrace.cli import artifacts, collectives, demo, testbed, topology
from headrace.cli.export import export
from headrace.cli.infer import infer
from headrace.cli.report import report
from headrace.errors import HeadraceError, InputError

app = typer.Typer(
    name="headrace",
    help="Measure a network, plan collectives for it, verify the plans, and run them in PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(collectives.app, name="collectives")
app.add_typer(topology.app, name="topology")
topology.app.command()(infer)
app.add_typer(testbed.app, name="testbed")
app.command()(artifacts.show)
app.command()(artifacts.verify)
app.command()(export)
app.command()(report)
app.command()(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  (Typer calls it)
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    """Run the command line: exit code 2 for wrong input, 1 for any other headrace error.

    Ctrl-C exits with 130, as shells expect of an interrupted command.
    """
    try:
        app()
    except HeadraceError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
