"""``headrace index``: which structure suits a workload, and its throughput and memory."""

import typer

from headrace.index.cli.adapt import adapt_trace_command
from headrace.index.cli.measure import measure_trace_command
from headrace.index.cli.plan import plan_index_command
from headrace.index.cli.run import run_trace_command

app = typer.Typer(no_args_is_help=True)
app.command("measure")(measure_trace_command)
app.command("plan")(plan_index_command)
app.command("run")(run_trace_command)
app.command("adapt")(adapt_trace_command)
