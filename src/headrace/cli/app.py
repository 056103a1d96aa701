"""The commands of ``headrace``, gathered."""

from typing import Annotated

import typer

import headrace
from headrace.cli import artifacts, collectives, demo, testbed, topology
from headrace.cli.export import export
from headrace.cli.infer import infer
from headrace.cli.report import report

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
