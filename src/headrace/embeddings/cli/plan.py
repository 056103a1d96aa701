"""``headrace embeddings plan``: lookahead, caches and synchronisation of a job."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option

_OPTIMIZERS = {
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "row-wise-adagrad": "RowWiseAdagrad",
    "sparse-adam": "SparseAdam",
}


def lookahead_plan_command(
    profile: Annotated[Path, typer.Argument(help="Embedding profile of the job's data.")],
    output: Annotated[Path, output_option("File for the embedding plan.")],
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
    compute: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds of the model's forward and backward pass of a trainer's share, "
            "without rows: times are predicted then.",
            min=0.001,
        ),
    ] = None,
    dense: Annotated[str, typer.Option(help="Parameters of the model's dense part.")] = "0",
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
    from headrace.collectives import predictor
    from headrace.embeddings.cli.show import lookahead_plan_tables
    from headrace.embeddings.plan.choose import plan_embeddings
    from headrace.embeddings.plan.step import StepCosts
    from headrace.embeddings.profile import EmbeddingProfile, Synchronisation
    from headrace.embeddings.tables import ROW_STATES
    from headrace.units import parse_bandwidth, parse_count, parse_size, size

    per_row, per_number = ROW_STATES[_OPTIMIZERS[optimizer]]
    accesses = EmbeddingProfile.load(profile)
    costs = None
    if compute is not None:
        costs = StepCosts(
            compute_s=compute / 1e3,
            link_bytes_per_s=parse_bandwidth(bandwidth, "--bandwidth")
            if network is None
            else predictor(network).slowest_bytes_per_s,
            processors=processors,
        )
    plan = plan_embeddings(
        accesses,
        row_bytes=4 * (dim + per_row + per_number * dim),
        gradient_bytes=4 * dim,
        dense_bytes=4 * parse_count(dense, "--dense"),
        cache_bytes=None if cache is None else parse_size(cache, "--cache"),
        servers=servers,
        readers=readers,
        synchronisation=None if synchronisation is None else Synchronisation(synchronisation),
        costs=costs,
        commit_every=commit_every,
        failures_s=3600 * failures,
    )
    plan.save(output, {"profile": accesses.digest, "profile_file": str(profile.resolve())})
    terminal().print(f"Wrote {text_of(output)} ({size(output.stat().st_size)}).", soft_wrap=True)
    for table in lookahead_plan_tables(plan, everything=False):
        terminal().print(table)
