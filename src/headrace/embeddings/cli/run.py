"""``headrace embeddings run``: trainers of a script, and the processes that serve them."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from headrace.cli.console import terminal, text_of
from headrace.cli.ending import unwind_on_sigterm
from headrace.embeddings.errors import EmbeddingError, JobError

if TYPE_CHECKING:
    from headrace.embeddings.plan.plan import EmbeddingPlan
    from headrace.embeddings.run.job_processes import JobHosts

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def run_job_command(
    plan: Annotated[Path, typer.Argument(help="Embedding plan of the job.")],
    script: Annotated[
        list[str],
        typer.Argument(help="Python script of each trainer and its arguments, after '--'."),
    ],
    trainers: Annotated[
        int | None,
        typer.Option(help="Of the script, in place of the plan's number.", min=1, max=32),
    ] = None,
    servers: Annotated[
        int | None, typer.Option(help="That store rows; the plan's number by default.", min=1)
    ] = None,
    readers: Annotated[
        int | None, typer.Option(help="That read data; the plan's number by default.", min=1)
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the job's commits: one that has some is gone on with from the newest."
        ),
    ] = None,
    commit_every: Annotated[
        int | None,
        typer.Option(
            help="Batches between commits; 0: at the ends of epochs alone.",
            min=0,
            show_default="the plan's",
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(help="Go on from the last commit by itself where a process was lost."),
    ] = True,
    equal_shares: Annotated[
        bool,
        typer.Option(
            "--equal-shares", help="Trainers have equal shares of batches whatever their rates."
        ),
    ] = False,
    script_reads: Annotated[
        bool,
        typer.Option(
            "--script-reads", help="Readers run the script, too: its fit serves its own dataset."
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster to run on, this machine being one of its nodes: HOST:PORT, or auto."
        ),
    ] = None,
) -> None:
    """Run a script that calls headrace.embeddings.fit, with all that serves it, on this machine.

    Servers, readers and a cacher are started, then the trainers, with torchrun's variables: RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. SCRIPT is a file, or -m and a module.

    Each line of a trainer's output begins with its number. The first process that fails ends all;
    the exit code is that of the trainer that failed. With --state, rows, model and optimizers are
    committed to a folder: where a process was lost all begin again from the last commit, and so
    does the same command after an end of any kind, also with other numbers of processes.

    Lookahead, prefetch and the trainers' shares of batches follow the job unless HEADRACE_ADAPT is
    off; HEADRACE_ADAPT_LOG names a file for the changes.

    With --ray the processes are spread over the nodes of a Ray cluster, trainers with a GPU each if
    it has so many. Script, data and --state need the same paths on all of them.
    """
    from headrace.embeddings.plan.plan import EmbeddingPlan
    from headrace.embeddings.run.job_processes import JobOptions
    from headrace.embeddings.run.supervisor import run_embedding_job
    from headrace.embeddings.settings import EmbeddingSettings

    argv = _command(script)
    job = EmbeddingPlan.load(plan)
    changes = {"trainers": trainers, "servers": servers, "readers": readers}
    job = replace(job, **{name: number for name, number in changes.items() if number is not None})
    console = terminal(soft_wrap=True, highlight=False)

    def show(name: str, line: str) -> None:
        number = name.rpartition(" ")[2]
        colour = _COLOURS[int(number) % len(_COLOURS)] if number.isdigit() else "bold"
        console.print(f"[{colour}]{escape(f'[{name}]')}[/] {escape(line)}")

    unwind_on_sigterm()
    try:
        with _hosts(job, ray) as hosts:
            run_embedding_job(
                argv,
                replace(
                    JobOptions.of_plan(job, EmbeddingSettings.from_environment()),
                    folder=state,
                    commit_every=job.commit_every if commit_every is None else commit_every,
                    equal_shares=equal_shares,
                ),
                hosts,
                on_line=show,
                script_reads=script_reads,
                restart=restart,
            )
    except JobError as error:
        terminal(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {text_of(error)}")
        raise typer.Exit(error.exit_code) from error


@contextmanager
def _hosts(job: "EmbeddingPlan", ray: str | None) -> Generator[Callable[[], "JobHosts"]]:
    """Yield what finds hosts for the processes of a plan's job, on this machine or a cluster."""
    from headrace.embeddings.run.job_processes import JobHosts

    numbers = {"trainers": job.trainers, "servers": job.servers, "readers": job.readers}
    if ray is None:
        yield partial(JobHosts.on_this_machine, **numbers)
        return
    from headrace.embeddings.run.ray_hosts import ray_hosts
    from headrace.launch.ray_cluster import RayCluster

    with RayCluster(ray) as cluster:
        yield partial(ray_hosts, cluster, **numbers)


def _command(script: Sequence[str]) -> list[str]:
    """Return the command of a trainer."""
    if script[0] != "-m" and not Path(script[0]).is_file():
        raise EmbeddingError(
            f"{script[0]}: no such file: a job needs a Python script, or -m and a module"
        )
    return [sys.executable, *script]
