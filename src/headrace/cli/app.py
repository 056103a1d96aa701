"""The commands of ``headrace``, gathered."""

from typing import Annotated

import typer

import headrace
from headrace.cli import artifacts, demo, testbed, topology
from headrace.cli.report import report_command
from headrace.collectives.cli import app as collectives
from headrace.collectives.cli.export import export_command
from headrace.collectives.cli.infer import infer_command

app = typer.Typer(
    name="headrace",
    help="Measure a network, plan collectives for it, verify the plans, and run them in PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(collectives.app, name="collectives")
app.add_typer(topology.app, name="topology")
topology.app.command("infer")(infer_command)
app.add_typer(testbed.app, name="testbed")
app.command("show")(artifacts.show_command)
app.command("verify")(artifacts.verify_command)
app.command("export")(export_command)
app.command("report")(report_command)
app.command("demo")(demo.demo_command)


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
