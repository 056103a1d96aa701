"""``headrace attention``: which bytes of a model's cache it needs, and generation over these."""

import typer

from headrace.attention.cli.adapt import adapt_cache_command
from headrace.attention.cli.bound import bound_command
from headrace.attention.cli.evaluate import evaluate_command
from headrace.attention.cli.measure import likeness_command
from headrace.attention.cli.plan import cache_plan_command
from headrace.attention.cli.run import continue_command

app = typer.Typer(no_args_is_help=True)
app.command("measure")(likeness_command)
app.command("plan")(cache_plan_command)
app.command("bound")(bound_command)
app.command("run")(continue_command)
app.command("evaluate")(evaluate_command)
app.command("adapt")(adapt_cache_command)
