"""``headrace compression``: whether compressed gradients make a training job faster."""

import typer

from headrace.compression.cli.measure import profile_command
from headrace.compression.cli.plan import advise_command

app = typer.Typer(
    help="Send gradients in fewer bytes: find out whether, and with what.", no_args_is_help=True
)
OTHERS = {}
"""Commands outside of the group, by their path."""

app.command("measure")(profile_command)
app.command("plan")(advise_command)
