"""``headrace embeddings``: which rows a training job moves, how few it could, and the job."""

import typer

from headrace.embeddings.cli.generate import generate_command
from headrace.embeddings.cli.measure import access_command
from headrace.embeddings.cli.plan import lookahead_plan_command
from headrace.embeddings.cli.run import run_job_command

app = typer.Typer(no_args_is_help=True)
app.command("generate")(generate_command)
app.command("measure")(access_command)
app.command("plan")(lookahead_plan_command)
app.command("run")(run_job_command)
