"""``headrace index adapt``: a trace on an index that follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.answers import result_of
from headrace.cli.console import terminal
from headrace.cli.ending import unwound_by_signals
from headrace.cli.options import output_option, plan_option, with_options
from headrace.cli.tables import facts, rows
from headrace.index.cli.workload import TraceFile, workload_of
from headrace.units import duration

if TYPE_CHECKING:
    from headrace.index.measure.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAdaptResult:
    """A trace's run on an index that adapts: rates by tenths of a run, in operations/s."""

    configuration: str
    seconds: float
    operations: int
    rates: list[float]
    events: list[dict[str, Any]]


@with_options(workload=workload_of)
def adapt_trace_command(
    trace: TraceFile,
    plan: Annotated[
        Path | None, plan_option("an index plan, to begin with; else the usual structure")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs, of the operations: adaptation takes some seconds.")
    ] = 1,
    bytes_per_key: Annotated[
        float | None, typer.Option(min=1, help="Cap of memory, for the plans that it makes.")
    ] = None,
    log: Annotated[
        Path | None,
        output_option("File to which the events are appended as lines of JSON.", "--log"),
    ] = None,
    *,
    workload: "Workload",
) -> IndexAdaptResult:
    """Run a trace on an index that adapts to it, and print what it did and when.

    Example: headrace index adapt keys.npy --plan index.plan --repeats 3
    """
    from headrace.index.adapt.offline import follow_trace
    from headrace.index.measure.files import read_trace
    from headrace.index.plan.plan import IndexPlan

    begun = None if plan is None else IndexPlan.load(plan)
    with unwound_by_signals(), terminal(stderr=True).status("running"):
        parsed = read_trace(trace, workload)
        followed = follow_trace(
            parsed, begun, repeats=repeats, most_bytes_per_key=bytes_per_key, log_path=log
        )
    console = terminal()
    per_s = followed.operations / max(followed.seconds, 1e-9)
    console.print(
        facts(
            "adapted",
            {
                "throughput": f"{per_s / 1e6:.3g} M operations/s, {followed.operations:,} in "
                f"{duration(1e6 * followed.seconds)}",
                "by tenths": _by_tenths(followed.rates),
                "configuration": followed.configuration.name,
            },
        )
    )
    if followed.events:
        start = followed.events[0]["at"]
        cells = [_event_row(event, start) for event in followed.events]
        for part in rows("events", ("after", "event", "note"), cells, everything=False):
            console.print(part)
    else:
        console.print(_uneventful(followed.seconds))
    return result_of(
        IndexAdaptResult,
        followed,
        configuration=followed.configuration.name,
        rates=list(followed.rates),
        events=[dict(event) for event in followed.events],
    )


def _by_tenths(rates: Sequence[float], most: int = 100) -> str:
    """Return the rates of each run's tenths, of the last ones if they are many, in M/s."""
    shown = ", ".join(f"{rate / 1e6:.3g}" for rate in rates[-most:])
    return shown if len(rates) <= most else f"the last {most} of {len(rates)}: {shown}"


def _uneventful(seconds: float) -> str:
    from headrace.index.adapt.agent import LOOK_S

    return (
        f"No events: the run took {duration(1e6 * seconds)}, and adaptation, which looks every "
        f"{LOOK_S:g} s, needs some of these to act; --repeats makes the run longer."
    )


def _event_row(event: Mapping[str, Any], start: float) -> tuple[str, str, str]:
    facts = (f"{name} {value}" for name, value in event.items() if name not in ("event", "at"))
    return duration(1e6 * (event["at"] - start)), str(event["event"]), ", ".join(facts)
