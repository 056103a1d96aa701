"""``headrace memory``: whether a training step fits into a budget, and what it costs."""

import typer

from headrace.memory.cli.estimate import estimate_step_command
from headrace.memory.cli.measure import measure_step_command
from headrace.memory.cli.plan import plan_step_command

app = typer.Typer(no_args_is_help=True)
app.command("estimate")(estimate_step_command)
app.command("measure")(measure_step_command)
app.command("plan")(plan_step_command)
