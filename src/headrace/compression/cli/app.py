"""``headrace compression``: whether compressed gradients make a training job faster."""

import typer

from headrace.compression.cli.measure import profile_command
from headrace.compression.cli.plan import advise_command

app = typer.Typer(no_args_is_help=True)
app.command("measure")(profile_command)
app.command("plan")(advise_command)
