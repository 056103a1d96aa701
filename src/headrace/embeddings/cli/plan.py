"""``headrace embeddings plan``: lookahead, caches and synchronisation of a job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, terminal
from headrace.cli.former import Former
from headrace.cli.options import (
    count_option,
    output_option,
    rate_option,
    refuse_without_effect,
    size_option,
    time_option,
    topology_option,
    with_options,
)

if TYPE_CHECKING:
    from headrace.embeddings.plan.choose import JobRequirements
    from headrace.embeddings.plan.step import StepCosts

_BANDWIDTH = "10Gbit/s"
_FAILURES = "12h"

_OPTIMIZERS = {
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "row-wise-adagrad": "RowWiseAdagrad",
    "sparse-adam": "SparseAdam",
}


def fixed_requirements(
    dim: Annotated[int, typer.Option(help="Numbers of a row.", min=1)] = 48,
    row_optimizer: Annotated[
        Literal["sgd", "adagrad", "row-wise-adagrad", "sparse-adam"],
        typer.Option(help="Of the rows: its state lies beside each row."),
        Former("--optimizer"),
    ] = "sgd",
    cache_memory: Annotated[
        str | None,
        size_option("Memory of a cache: of each trainer's", default="as needed"),
        Former("--cache"),
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

    per_row, per_number = ROW_STATES[_OPTIMIZERS[row_optimizer]]
    return JobRequirements(
        row_bytes=4 * (dim + per_row + per_number * dim),
        gradient_bytes=4 * dim,
        cache_bytes=None if cache_memory is None else parse_size(cache_memory, "--cache-memory"),
        servers=servers,
        readers=readers,
        synchronisation=None if synchronisation is None else Synchronisation(synchronisation),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Hosts of a job: the rate of their links, their processors; the options as given."""

    link_bytes_per_s: float
    processors: int
    options: Mapping[str, object]

    def costs(self, compute_s: float) -> "StepCosts":
        """Return the costs of a step whose device computes for so long."""
        from headrace.embeddings.plan.step import StepCosts

        return StepCosts(
            compute_s=compute_s,
            link_bytes_per_s=self.link_bytes_per_s,
            processors=self.processors,
        )


def host_options(
    bandwidth: Annotated[
        str | None,
        rate_option("Rate of each host's link in each direction", default=_BANDWIDTH),
    ] = None,
    topology: Annotated[
        Path | None,
        topology_option("whose slowest link counts, in place of --bandwidth"),
        Former("--network"),
    ] = None,
    processors: Annotated[
        int,
        typer.Option(help="That all processes share; 0: each has one of its own.", min=0),
    ] = 0,
) -> HostOptions:
    """Return the options of the hosts."""
    from headrace.collectives import predictor
    from headrace.testbed.rates import PAYLOAD_SHARE
    from headrace.units import parse_bandwidth

    if topology is not None:
        refuse_without_effect({"--bandwidth": bandwidth}, "with --topology: the file has the links")
    return HostOptions(
        link_bytes_per_s=PAYLOAD_SHARE
        * parse_bandwidth(_BANDWIDTH if bandwidth is None else bandwidth, "--bandwidth")
        if topology is None
        else predictor(topology).slowest_bytes_per_s,
        processors=processors,
        options={"--bandwidth": bandwidth, "--topology": topology, "--processors": processors > 0},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadPlanResult:
    """A job's processes, lookahead and caches; its step's time if that was predicted."""

    file: WrittenFile
    batch: int
    trainers: int
    servers: int
    readers: int
    lookahead: int
    prefetch: int
    cache_bytes: int
    synchronisation: str
    commit_every: int
    fetched_rows: float
    critical_rows: float
    step_s: float | None
    bound: str | None


@with_options(job=fixed_requirements, hosts=host_options)
def lookahead_plan_command(
    profile: Annotated[Path, typer.Argument(help="Embedding profile of the job's data.")],
    output: Annotated[Path, output_option("File to write: the embedding plan.")],
    *,
    job: "JobRequirements",
    compute: Annotated[
        str | None,
        time_option(
            "Forward and backward pass of the model on a trainer's share, without rows: times are "
            "predicted then"
        ),
        Former("--compute", unit="ms"),
    ] = None,
    dense: Annotated[str, count_option("Parameters of the model's dense part")] = "0",
    hosts: HostOptions,
    commit_every: Annotated[
        int | None,
        typer.Option(help="Batches between commits; those of the least cost by default.", min=1),
    ] = None,
    failures: Annotated[
        str | None,
        time_option("Between losses of a process of the job, the mean", default=_FAILURES),
        Former("--failures", unit="h"),
    ] = None,
) -> LookaheadPlanResult:
    """Plan a training job's lookahead, caches, synchronisation, processes and commits.

    With --compute the step is predicted: what it is bound by, and how often to commit.

    Example: headrace embeddings plan clicks.profile --cache-memory 1GiB -o clicks.plan
    """
    from headrace.embeddings.cli.show import lookahead_plan_tables
    from headrace.embeddings.plan.choose import plan_embeddings
    from headrace.embeddings.profile import EmbeddingProfile
    from headrace.units import parse_count, parse_time

    accesses = EmbeddingProfile.load(profile)
    job = replace(
        job,
        dense_bytes=4 * parse_count(dense, "--dense"),
        commit_every=commit_every,
        failures_s=parse_time(
            _FAILURES if failures is None else failures, "--failures", least_s=3.6
        ),
    )
    plan = plan_embeddings(accesses, job, _costs(compute, hosts, failures))
    plan.save(output, {"profile": accesses.digest, "profile_file": str(profile.resolve())})
    print_written(output)
    for table in lookahead_plan_tables(plan, everything=False):
        terminal().print(table)
    return result_of(
        LookaheadPlanResult,
        plan,
        file=WrittenFile.at(output),
        synchronisation=plan.synchronisation.value,
        step_s=None if plan.time is None else plan.time.step_s,
        bound=None if plan.time is None else plan.time.bound,
    )


def _costs(compute: str | None, hosts: HostOptions, failures: str | None) -> "StepCosts | None":
    """Return the costs of a step; None without --compute, which options of times need."""
    from headrace.units import parse_time

    if compute is None:
        options = {**hosts.options, "--failures": failures}
        refuse_without_effect(options, "without --compute: it is for times")
        return None
    return hosts.costs(parse_time(compute, "--compute", least_s=1e-6))
