"""``headrace embeddings run``: trainers of a script, and the processes that serve them."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal
from headrace.cli.ending import unwound_by_signals
from headrace.cli.options import with_options
from headrace.embeddings.cli.run_options import (
    RecordOptions,
    StartOptions,
    process_numbers,
    record_options,
    start_options,
)
from headrace.embeddings.errors import EmbeddingError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.embeddings.plan.plan import EmbeddingPlan
    from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions
    from headrace.embeddings.run.job.job_times import JobTimes
    from headrace.embeddings.run.job.record import EmbeddingRecord

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """A job's steps; null if the script trained on no batch."""

    batches: int
    batch: int
    trainers: int
    servers: int
    readers: int
    seconds: float
    step_s: float
    ideal: bool
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunResult:
    """The job, and the file of its record if one was asked for."""

    job: JobResult | None
    record: WrittenFile | None


@with_options(numbers=process_numbers, start=start_options, recording=record_options)
def run_job_command(
    plan: Annotated[Path, typer.Argument(help="Embedding plan of the job.")],
    script: Annotated[
        list[str],
        typer.Argument(help="Python script of each trainer and its arguments, after '--'."),
    ],
    *,
    numbers: Mapping[str, int],
    start: StartOptions,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster to run on, this machine being one of its nodes: HOST:PORT, or auto."
        ),
    ] = None,
    recording: RecordOptions,
) -> JobRunResult:
    """Run a script that calls headrace.embeddings.fit, with all that serves it, on this machine.

    Servers, readers and a cacher are started, then the trainers, with torchrun's variables: RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. SCRIPT is a file, or -m and a module.

    Each line of a trainer's output begins with its number. The first process that fails ends all;
    the exit code is that of the trainer that failed. With --state, rows, model and optimizers are
    committed to a folder: where a process was lost all begin again from the last commit, and so
    does the same command after an end of any kind, also with other numbers of processes. With
    --min-trainers it goes on without a trainer that does not come back.

    Lookahead, prefetch and the trainers' shares of batches follow the job, unless
    HEADRACE_EMBEDDINGS_ADAPT is off; HEADRACE_EMBEDDINGS_ADAPT_LOG names a file for the changes.

    With --ray the processes are spread over the nodes of a Ray cluster, trainers with a GPU each if
    it has so many. Script, data and --state need the same paths on all of them.

    Five lines at the end say what steps took and waited for. --record keeps that in a file, of a
    job that fails or is interrupted too, for headrace show and headrace report.

    Example: headrace embeddings run clicks.plan --state commits -- train.py
    """
    from headrace.embeddings.plan.plan import EmbeddingPlan

    argv = _command(script)
    job = replace(EmbeddingPlan.load(plan), **numbers)
    ideal_step_s = recording.ideal_step_s()
    options = start.of_job(job, ideal=recording.ideal)
    errors = terminal(stderr=True, soft_wrap=True, highlight=False)
    _warn_of_ideal(errors, ideal=recording.ideal)
    keep = partial(
        recording.keep,
        plan=job,
        ideal_step_s=ideal_step_s,
        provenance={"plan": job.digest, "script": argv[1:]},
    )
    keep_unfinished = partial(_keep_unfinished, keep, recording.record, errors)
    with unwound_by_signals(), _hosts(job, ray, start.min_trainers) as hosts:
        times = _run(argv, options, hosts, start, errors, keep_unfinished)
    recorded = keep(times)
    _print_summary(recorded, job.batch, errors)
    _warn_of_ideal(errors, ideal=recording.ideal)
    return _result(recorded, recording.record)


def _keep_unfinished(
    keep: "Callable[[JobTimes | None], object]",
    file: Path | None,
    errors: Console,
    times: "JobTimes | None",
) -> None:
    """Keep the record of a job that failed, or was interrupted, if a file is named.

    What hinders that is a warning: the job's own error goes on.
    """
    if file is None:
        return
    try:
        keep(times)
    except HeadraceError as error:
        errors.print(f"[bold yellow]warning:[/] {escape(str(error))}")
    else:
        errors.print(f"Steps until then: {file}", markup=False)


def _print_summary(
    recorded: "EmbeddingRecord | None", planned_batch: int, console: Console
) -> None:
    from headrace.embeddings.cli.run_progress import summary_lines

    if recorded is None:
        console.print(
            "[bold yellow]warning:[/] the script trained on no batch: it has to call "
            "headrace.embeddings.fit and iterate over the batches, unless a commit has them all"
        )
        return
    for line in summary_lines(recorded, planned_batch):
        console.print(line, markup=False)


def _result(recorded: "EmbeddingRecord | None", file: Path | None) -> JobRunResult:
    from headrace.embeddings.run.job.advice import advice

    if recorded is None:
        return JobRunResult(job=None, record=None)
    job = result_of(JobResult, recorded, seconds=float(recorded.end_s[-1]), advice=advice(recorded))
    return JobRunResult(job=job, record=None if file is None else WrittenFile.at(file))


def _run(
    argv: Sequence[str],
    options: "JobOptions",
    hosts: "JobHosts | Callable[[], JobHosts]",
    start: StartOptions,
    errors: Console,
    on_failure: "Callable[[JobTimes | None], None]",
) -> "JobTimes | None":
    """Run a job, with its output and its progress on the console; return its times.

    Parameters
    ----------
    on_failure : called with the times of a job that fails or is interrupted.

    Raises
    ------
    JobError : a process failed; it has the exit code.
    """
    from headrace.embeddings.cli.run_progress import job_progress
    from headrace.embeddings.run.job.supervisor import run_embedding_job

    console = terminal(soft_wrap=True, highlight=False, quiet=False)  # the job's output
    commit_every = options.commit_every if options.folder else 0
    with job_progress(console, errors, commit_every) as (on_sample, times_of_job):
        try:
            run_embedding_job(
                argv,
                options,
                hosts,
                on_line=partial(_print_line, console),
                script_reads=start.script_reads,
                restart=start.restart,
                min_trainers=start.min_trainers,
                on_sample=on_sample,
            )
        except BaseException:
            on_failure(times_of_job())
            raise
    return times_of_job()


def _print_line(console: Console, name: str, line: str) -> None:
    """Print a line of a process after its name, in the colour of its number."""
    number = name.rpartition(" ")[2]
    colour = _COLOURS[int(number) % len(_COLOURS)] if number.isdigit() else "bold"
    console.print(f"[{colour}]{escape(f'[{name}]')}[/] {escape(line)}")


def _warn_of_ideal(errors: Console, *, ideal: bool) -> None:
    if ideal:
        errors.print(
            "[bold yellow]ideal job:[/] no rows move, so RESULTS ARE WRONG: times of steps alone "
            "mean something"
        )


@contextmanager
def _hosts(
    job: "EmbeddingPlan", ray: str | None, min_trainers: int | None
) -> Generator["JobHosts | Callable[[], JobHosts]"]:
    """Yield the hosts of a plan's job on this machine, or what finds them in a cluster."""
    from headrace.embeddings.run.job.job_processes import JobHosts

    numbers = {"trainers": job.trainers, "servers": job.servers, "readers": job.readers}
    if ray is None:
        yield JobHosts.on_this_machine(**numbers)
        return
    from headrace.embeddings.run.job.ray_hosts import ray_hosts
    from headrace.launch.ray_cluster import RayCluster

    with RayCluster(ray) as cluster:
        yield partial(ray_hosts, cluster, **numbers, fewest=min_trainers)


def _command(script: Sequence[str]) -> list[str]:
    """Return the command of a trainer."""
    if script[0] != "-m" and not Path(script[0]).is_file():
        raise EmbeddingError(
            f"{script[0]}: no such file: a job needs a Python script, or -m and a module"
        )
    return [sys.executable, *script]
