"""The commands of ``headrace``, gathered: shared ones, and those of every capability.

A capability's module ``cli/app.py`` holds its group as ``app``, and as ``OTHERS`` the commands that
it adds to the root ("export") or to a shared group ("topology infer").
"""

import importlib
from typing import Annotated

import typer

import headrace
from headrace.cli import artifacts, demo, testbed, topology
from headrace.cli.report import report_command
from headrace.kinds import capabilities

app = typer.Typer(
    name="headrace",
    help="Measure a network, plan collectives for it, verify the plans, and run them in PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
_GROUPS = {"": app, "topology": topology.app, "testbed": testbed.app}


def _add_capabilities() -> None:
    for name in capabilities():
        commands = importlib.import_module(f"headrace.{name}.cli.app")
        app.add_typer(commands.app, name=name)
        for path, command in commands.OTHERS.items():
            group, _, verb = path.rpartition(" ")
            _GROUPS[group].command(verb)(command)


app.command("show")(artifacts.show_command)
app.command("verify")(artifacts.verify_command)
_add_capabilities()
app.add_typer(topology.app, name="topology")
app.add_typer(testbed.app, name="testbed")
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
