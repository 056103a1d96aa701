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
    servers: Annotated[int, typer.Option(help="Processes that store rows.", min=1)] = 1,
    readers: Annotated[int, typer.Option(help="Processes that read data.", min=1)] = 1,
    synchronisation: Annotated[
        Literal["targeted", "lrpp", "replicated"], typer.Option(help="Between the caches.")
    ] = "targeted",
) -> None:
    """Plan a training job's lookahead, caches and synchronisation."""
    from headrace.embeddings.cli.show import lookahead_plan_tables
    from headrace.embeddings.plan.choose import plan_embeddings
    from headrace.embeddings.profile import EmbeddingProfile, Synchronisation
    from headrace.embeddings.tables import ROW_STATES
    from headrace.units import parse_size, size

    per_row, per_number = ROW_STATES[_OPTIMIZERS[optimizer]]
    accesses = EmbeddingProfile.load(profile)
    plan = plan_embeddings(
        accesses,
        row_bytes=4 * (dim + per_row + per_number * dim),
        cache_bytes=None if cache is None else parse_size(cache, "--cache"),
        servers=servers,
        readers=readers,
        synchronisation=Synchronisation(synchronisation),
    )
    plan.save(output, {"profile": accesses.digest})
    terminal().print(f"Wrote {text_of(output)} ({size(output.stat().st_size)}).", soft_wrap=True)
    for table in lookahead_plan_tables(plan, everything=False):
        terminal().print(table)
