"""``headrace embeddings run``: trainers of a script, and the processes that serve them."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from headrace.cli.console import terminal, text_of
from headrace.cli.ending import unwind_on_sigterm
from headrace.cli.options import output_option
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
    record: Annotated[
        Path | None,
        output_option("File for a record of the job: what steps took and waited for.", "--record"),
    ] = None,
    ideal: Annotated[
        bool,
        typer.Option(
            "--ideal",
            help="Move no rows, to see how short a step could be: RESULTS ARE WRONG.",
        ),
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Record of an ideal job, to compare steps with.")
    ] = None,
) -> None:
    """Run a script that calls headrace.embeddings.fit, with all that serves it, on this machine.

    Servers, readers and a cacher are started, then the trainers, with torchrun's variables: RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. SCRIPT is a file, or -m and a module.

    Each line of a trainer's output begins with its number. The first process that fails ends all;
    the exit code is that of the trainer that failed. With --state, rows, model and optimizers are
    committed to a folder: where a process was lost all begin again from the last commit, and so
    does the same command after an end of any kind, also with other numbers of processes.

    Lookahead, prefetch and the trainers' shares of batches follow the job, unless
    HEADRACE_EMBEDDINGS_ADAPT is off; HEADRACE_EMBEDDINGS_ADAPT_LOG names a file for the changes.

    With --ray the processes are spread over the nodes of a Ray cluster, trainers with a GPU each if
    it has so many. Script, data and --state need the same paths on all of them.

    Five lines at the end say what steps took and waited for. --record keeps that in a file, for
    headrace show and headrace report.
    """
    from headrace.embeddings.cli.run_progress import job_progress, summary_lines
    from headrace.embeddings.plan.plan import EmbeddingPlan
    from headrace.embeddings.run.job_processes import JobOptions
    from headrace.embeddings.run.record import EmbeddingRecord
    from headrace.embeddings.run.supervisor import run_embedding_job
    from headrace.embeddings.settings import EmbeddingSettings

    argv = _command(script)
    job = EmbeddingPlan.load(plan)
    changes = {"trainers": trainers, "servers": servers, "readers": readers}
    job = replace(job, **{name: number for name, number in changes.items() if number is not None})
    ideal_step_s = 0.0 if against is None else _ideal_step_s(against)
    options = replace(
        JobOptions.of_plan(job, EmbeddingSettings.from_environment()),
        folder=state,
        commit_every=job.commit_every if commit_every is None else commit_every,
        equal_shares=equal_shares,
        ideal=ideal,
    )
    console = terminal(soft_wrap=True, highlight=False)
    errors = terminal(stderr=True, soft_wrap=True, highlight=False)

    def show(name: str, line: str) -> None:
        number = name.rpartition(" ")[2]
        colour = _COLOURS[int(number) % len(_COLOURS)] if number.isdigit() else "bold"
        console.print(f"[{colour}]{escape(f'[{name}]')}[/] {escape(line)}")

    unwind_on_sigterm()
    _warn_of_ideal(errors, ideal=ideal)
    try:
        with (
            _hosts(job, ray) as hosts,
            job_progress(console, errors, options.commit_every if state else 0) as progress,
        ):
            on_sample, times_of_job = progress
            run_embedding_job(
                argv,
                options,
                hosts,
                on_line=show,
                script_reads=script_reads,
                restart=restart,
                on_sample=on_sample,
            )
    except JobError as error:
        errors.print(f"[bold red]error:[/] {text_of(error)}")
        raise typer.Exit(error.exit_code) from error
    times = times_of_job()
    if times is not None and times.total("trainer").batches > 0:
        recorded = EmbeddingRecord.of(
            times,
            batch=job.batch,
            trainers=job.trainers,
            servers=job.servers,
            readers=job.readers,
            ideal=ideal,
            ideal_step_s=ideal_step_s,
        )
        if record is not None:
            recorded.save(record, {"plan": job.digest, "script": argv[1:]})
        for line in summary_lines(recorded):
            errors.print(line, markup=False)
    elif record is not None:
        raise EmbeddingError(f"{record} was not written: the script trained on no batch")
    _warn_of_ideal(errors, ideal=ideal)


def _warn_of_ideal(errors: Console, *, ideal: bool) -> None:
    if ideal:
        errors.print(
            "[bold yellow]ideal job:[/] no rows move, so RESULTS ARE WRONG: times of steps alone "
            "mean something"
        )


def _ideal_step_s(path: Path) -> float:
    """Return the seconds of a step of an ideal job's record."""
    from headrace.embeddings.run.record import EmbeddingRecord

    record = EmbeddingRecord.load(path)
    if not record.ideal:
        raise EmbeddingError(f"{path}: is no record of an ideal job: make one with run --ideal")
    return record.step_s


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
