"""``headrace embeddings plan``: lookahead, caches and synchronisation of a job."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.console import print_written, terminal
from headrace.cli.options import output_option, with_options

if TYPE_CHECKING:
    from headrace.embeddings.plan.choose import JobRequirements
    from headrace.embeddings.plan.step import StepCosts

_OPTIMIZERS = {
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "row-wise-adagrad": "RowWiseAdagrad",
    "sparse-adam": "SparseAdam",
}


def fixed_requirements(
    dim: Annotated[int, typer.Option(help="Numbers of a row.", min=1)] = 48,
    optimizer: Annotated[
        Literal["sgd", "adagrad", "row-wise-adagrad", "sparse-adam"],
        typer.Option(help="Of the rows: its state lies beside each row."),
    ] = "sgd",
    cache: Annotated[
        str | None, typer.Option(help="Of each trainer, such as 1GiB; as needed by default.")
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(help="Processes that store rows; of the shortest step by default.", min=1),
    ] = None,
    readers: Annotated[
        int | None,
        typer.Option(help="Processes that read data; of the shortest step by default.", min=1),
    ] = None,
    synchronisation: Annotated[
        Literal["targeted", "lrpp", "replicated"] | None,
        typer.Option(help="Between the caches; of the shortest step by default."),
    ] = None,
) -> "JobRequirements":
    """Return a job's rows, and what of its caches and processes is fixed."""
    from headrace.embeddings.plan.choose import JobRequirements
    from headrace.embeddings.profile import Synchronisation
    from headrace.embeddings.tables import ROW_STATES
    from headrace.units import parse_size

    per_row, per_number = ROW_STATES[_OPTIMIZERS[optimizer]]
    return JobRequirements(
        row_bytes=4 * (dim + per_row + per_number * dim),
        gradient_bytes=4 * dim,
        cache_bytes=None if cache is None else parse_size(cache, "--cache"),
        servers=servers,
        readers=readers,
        synchronisation=None if synchronisation is None else Synchronisation(synchronisation),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Hosts of a job: the rate of their links, as text or in a file, and their processors."""

    bandwidth: str
    network: Path | None
    processors: int

    def costs(self, compute_s: float) -> "StepCosts":
        """Return the costs of a step whose device computes for so long."""
        from headrace.collectives import predictor
        from headrace.embeddings.plan.step import StepCosts
        from headrace.units import parse_bandwidth

        return StepCosts(
            compute_s=compute_s,
            link_bytes_per_s=parse_bandwidth(self.bandwidth, "--bandwidth")
            if self.network is None
            else predictor(self.network).slowest_bytes_per_s,
            processors=self.processors,
        )


def host_options(
    bandwidth: Annotated[
        str, typer.Option(help="Rate of each host's link in each direction: 10Gbit/s, 1.25GB/s.")
    ] = "10Gbit/s",
    network: Annotated[
        Path | None,
        typer.Option(
            help="Measured profile or topology of the hosts: its slowest link, in place of "
            "--bandwidth."
        ),
    ] = None,
    processors: Annotated[
        int,
        typer.Option(help="That all processes share; 0: each has one of its own.", min=0),
    ] = 0,
) -> HostOptions:
    """Return the options of the hosts."""
    return HostOptions(bandwidth=bandwidth, network=network, processors=processors)


@with_options(job=fixed_requirements, hosts=host_options)
def lookahead_plan_command(
    profile: Annotated[Path, typer.Argument(help="Embedding profile of the job's data.")],
    output: Annotated[Path, output_option("File for the embedding plan.")],
    *,
    job: "JobRequirements",
    compute: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds of the model's forward and backward pass of a trainer's share, "
            "without rows: times are predicted then.",
            min=0.001,
        ),
    ] = None,
    dense: Annotated[str, typer.Option(help="Parameters of the model's dense part.")] = "0",
    hosts: HostOptions,
    commit_every: Annotated[
        int | None,
        typer.Option(help="Batches between commits; of the least cost by default.", min=1),
    ] = None,
    failures: Annotated[
        float,
        typer.Option(help="Hours between losses of a process of the job, the mean.", min=0.001),
    ] = 12.0,
) -> None:
    """Plan a training job's lookahead, caches, synchronisation, processes and commits.

    With --compute the step is predicted: what it is bound by, and how often to commit.
    """
    from headrace.embeddings.cli.show import lookahead_plan_tables
    from headrace.embeddings.plan.choose import plan_embeddings
    from headrace.embeddings.profile import EmbeddingProfile
    from headrace.units import parse_count

    accesses = EmbeddingProfile.load(profile)
    job = replace(
        job,
        dense_bytes=4 * parse_count(dense, "--dense"),
        commit_every=commit_every,
        failures_s=3600 * failures,
    )
    plan = plan_embeddings(accesses, job, None if compute is None else hosts.costs(compute / 1e3))
    plan.save(output, {"profile": accesses.digest, "profile_file": str(profile.resolve())})
    print_written(output)
    for table in lookahead_plan_tables(plan, everything=False):
        terminal().print(table)
