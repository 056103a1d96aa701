"""``headrace index``: which structure suits a workload, and its throughput and memory."""

import typer

from headrace.index.cli.measure import measure_trace_command

app = typer.Typer(no_args_is_help=True)
app.command("measure")(measure_trace_command)
