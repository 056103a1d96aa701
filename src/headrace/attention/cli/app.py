"""``headrace attention``: which bytes of a model's cache it needs, and generation over these."""

import typer

from headrace.attention.cli.measure import measure_command
from headrace.attention.cli.plan import plan_command
from headrace.attention.cli.run import evaluate_command, run_command

app = typer.Typer(no_args_is_help=True)
app.command("measure")(measure_command)
app.command("plan")(plan_command)
app.command("run")(run_command)
app.command("evaluate")(evaluate_command)
