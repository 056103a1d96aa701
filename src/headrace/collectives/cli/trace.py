"""``headrace collectives trace``: one run of a collective, step by step."""

import json
import statistics
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import headrace
import headrace.artifact as artifact_io
from headrace.cli.answers import WrittenFile
from headrace.cli.console import terminal, text_of
from headrace.cli.ending import unwound_by_signals
from headrace.cli.options import (
    Order,
    Seed,
    TestbedFile,
    check_order,
    output_option,
    topology_option,
)
from headrace.cli.progress import progress
from headrace.collectives.cli.method import Root, TotalBytes, check_named
from headrace.collectives.cli.network import read_topology
from headrace.collectives.demand import ROOTED, Collective
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import InputError
from headrace.units import duration, parse_size, size

if TYPE_CHECKING:
    from headrace.collectives.run.choose import Choice
    from headrace.collectives.trace.job import TraceJob, TraceResult
    from headrace.collectives.trace.times import Times
    from headrace.topology import Topology

_RANKS = 4
_LANES = 48
"""Most lanes that are printed; the file has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRunResult:
    """Runs of one collective: their times, and that predicted where the network is known."""

    file: WrittenFile
    collective: str
    bytes: int
    ranks: int
    plan: str
    totals_us: list[float]
    predicted_us: float | None
    clock_uncertainty_us: float


def trace_command(
    output: Annotated[
        Path,
        output_option("File to write: the trace (JSON), for ui.perfetto.dev."),
    ],
    collective: Annotated[Collective, typer.Option(help="Collective.")] = Collective.ALLREDUCE,
    total: TotalBytes = "16M",
    ranks: Annotated[
        int | None,
        typer.Option(help="Number of ranks, on this machine.", min=1, show_default="4"),
    ] = None,
    testbed: TestbedFile = None,
    order: Order = "rack",
    seed: Seed = 0,
    plan_book: Annotated[
        Path | None, typer.Option(help="Run it by the plan of this book; else by a template.")
    ] = None,
    topology: Annotated[
        Path | None,
        topology_option("to predict by; else that of the plan book or the testbed"),
    ] = None,
    root: Root = 0,
    repeats: Annotated[
        int, typer.Option(help="Runs, of which that of median time is kept.", min=1)
    ] = 9,
) -> TraceRunResult | None:
    """Run one collective, and write the times of all its steps on every rank.

    It runs between processes of this machine, on a testbed (--testbed), or between the ranks of
    torchrun ('torchrun ... -m headrace collectives trace -o FILE'). Every result is checked. Open
    the file in ui.perfetto.dev or chrome://tracing: a process is a rank, a row is a lane, arrows
    lead from sends to receives; where the network is known, what was predicted stands below.

    Example: headrace collectives trace --ranks 2 --size 1MiB -o trace.json
    """
    from headrace.collectives.run.book import load_book

    settings = CollectiveSettings.from_environment()
    _check(collective, root, ranks, testbed, settings)
    check_order(order, seed, testbed)
    book = load_book(plan_book)
    network = None if topology is None else read_topology(topology)
    if network is None and book is not None:
        network = book.topology
    bytes_wanted = parse_size(total, "--size")
    choices: list[Choice] = []

    def job_of(ranks: int, one_host: bool) -> "TraceJob":
        from headrace.collectives.run.choose import Chooser
        from headrace.collectives.trace.job import TraceJob

        if network is not None and network.ranks != ranks:
            raise InputError(
                f"{topology or plan_book} is for {network.ranks} ranks, this runs on {ranks}: "
                "needs the same number"
            )
        if not 0 <= root < ranks:
            raise InputError(f"--root is {root}, needs 0 to {ranks - 1}")
        chooser = Chooser(ranks, book, one_host=one_host, channels=settings.channels)
        choices.append(chooser.choose(collective, bytes_wanted, root))
        return TraceJob(
            program=choices[-1].program,
            total_bytes=bytes_wanted,
            repeats=repeats,
            deadline_s=settings.deadline_s,
        )

    unwinding = unwound_by_signals() if settings.rank is None else nullcontext()
    with unwinding, progress(terminal(stderr=True), visible=not settings.rank) as report:
        from headrace.collectives.trace.launch import trace_local, trace_testbed, trace_torchrun

        if settings.rank is not None and testbed is None:
            job, traced = trace_torchrun(job_of, report)
        elif testbed is None:
            count = ranks or (_RANKS if network is None else network.ranks)
            job = job_of(count, settings.shared_memory)
            traced = trace_local(job, report)
        else:
            from headrace.cli.testbed import testbed_for
            from headrace.testbed import TestbedSpec

            spec = TestbedSpec.load(testbed)
            indices = spec.order(order, seed=seed)
            job = job_of(len(indices), False)
            with testbed_for(spec, "Running", report) as up:
                traced = trace_testbed(up, [spec.hosts[i].name for i in indices], job, report)
            network = network or spec.topology(indices)
    if traced is None:
        return None
    return _write_trace(output, job, traced, network, choices[0].origin)


def _check(
    collective: Collective,
    root: int,
    ranks: int | None,
    testbed: Path | None,
    settings: CollectiveSettings,
) -> None:
    check_named(collective, root)
    if ranks is not None and (testbed is not None or settings.rank is not None):
        raise InputError(
            "--ranks is for processes of this machine: a testbed has a rank for each host, and "
            "torchrun starts its own; leave it out"
        )


def _write_trace(
    output: Path, job: "TraceJob", traced: "TraceResult", topology: "Topology | None", origin: str
) -> TraceRunResult:
    """Write the file, and print a summary of it."""
    from headrace.collectives.trace.events import trace_events
    from headrace.collectives.trace.times import measured, predicted

    times = measured(job.program, traced.trace)
    prediction = None
    if topology is not None:
        prediction = predicted(job.program, topology, job.moved_bytes)
    about = _about(job, traced, prediction, topology, origin)
    events = trace_events(job.program, times, prediction, about)
    artifact_io.write_file(output, json.dumps(events).encode())
    console = terminal()
    console.print(_lanes(job, times, prediction))
    console.print(_totals(traced, prediction, topology))
    errors = traced.trace.uncertainty_ns
    console.print(
        f"{job.program.demand.collective} of {size(job.moved_bytes, job.total_bytes)} on "
        f"{len(errors)} ranks by {origin}; every result was right. {_clocks(int(errors.max()))}",
        soft_wrap=True,
        highlight=False,
    )
    console.print(
        f"Wrote [bold]{text_of(output)}[/]: open it in ui.perfetto.dev or chrome://tracing.",
        soft_wrap=True,
    )
    return TraceRunResult(
        file=WrittenFile.at(output),
        collective=job.program.demand.collective.value,
        bytes=job.moved_bytes,
        ranks=len(errors),
        plan=origin,
        totals_us=[float(total_us) for total_us in traced.totals_us],
        predicted_us=None if prediction is None else float(prediction.total_us),
        clock_uncertainty_us=float(errors.max()) / 1e3,
    )


def _about(
    job: "TraceJob",
    traced: "TraceResult",
    prediction: "Times | None",
    topology: "Topology | None",
    origin: str,
) -> dict[str, Any]:
    demand = job.program.demand
    about: dict[str, Any] = {
        "headrace": headrace.__version__,
        "collective": demand.collective.value,
        "bytes": job.moved_bytes,
        "ranks": demand.ranks,
        "plan": origin,
        "measured_us": traced.trace.total_us,
        "all_measured_us": list(traced.totals_us),
        "clock_uncertainty_us": [ns / 1e3 for ns in traced.trace.uncertainty_ns.tolist()],
    }
    if demand.collective in ROOTED:
        about["root"] = demand.root
    if prediction is not None and topology is not None:
        about |= {"predicted_us": prediction.total_us, "predicted_for": topology.name}
    return about


def _lanes(job: "TraceJob", times: "Times", prediction: "Times | None") -> Table:
    from headrace.collectives.trace.events import lane_name
    from headrace.collectives.trace.lanes import lane_counters

    program = job.program
    rows = lane_counters(program, times)
    predicted = [None] * len(rows) if prediction is None else lane_counters(program, prediction)
    more = f"; {len(rows) - _LANES} more are in the file" if len(rows) > _LANES else ""
    title = f"lanes, in ms, of the run of median time{more}"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for name in ("rank", "lane", "steps", "bytes", "moving", "waiting", "held back"):
        table.add_column(name, justify="left" if name == "lane" else "right", no_wrap=True)
    if prediction is not None:
        table.add_column("predicted\nmoving", justify="right")
    shown_rank = -1
    for row, expected in zip(rows[:_LANES], predicted[:_LANES], strict=True):
        table.add_row(
            "" if row.rank == shown_rank else str(row.rank),
            lane_name(row.direction, row.peer, row.channel),
            str(row.steps),
            size(row.bytes, job.total_bytes),
            *(_ms(us) for us in (row.moving_us, row.waiting_us, row.held_us)),
            *(() if expected is None else (_ms(expected.moving_us),)),
        )
        shown_rank = row.rank
    return table


def _totals(
    traced: "TraceResult", prediction: "Times | None", topology: "Topology | None"
) -> Table:
    totals = traced.totals_us
    table = Table(box=None, pad_edge=False, title="total, in ms", title_justify="left")
    values = {
        f"median of {len(totals)}": _ms(statistics.median_low(totals)),
        "fastest": _ms(min(totals)),
        "slowest": _ms(max(totals)),
    }
    if prediction is not None and topology is not None:
        values[f"predicted for {topology.name}"] = _ms(prediction.total_us)
    for name in values:
        table.add_column(name, justify="right")
    table.add_row(*values.values())
    return table


def _ms(us: float) -> str:
    return f"{us / 1e3:,.3f}"


def _clocks(most_ns: int) -> str:
    if most_ns == 0:
        return "All ranks read one clock."
    return f"Ranks' clocks were compared to within {duration(most_ns / 1e3)}."
