"""``headrace index run``: a trace on an index, with what is found checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.answers import result_of
from headrace.cli.console import terminal
from headrace.cli.former import Former
from headrace.cli.options import plan_option, with_options
from headrace.cli.tables import facts
from headrace.index.cli.workload import TraceFile, workload_of
from headrace.index.configuration import Configuration
from headrace.units import duration

if TYPE_CHECKING:
    from headrace.index.measure.workload import Workload
    from headrace.index.run.trial import ReplayResult


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRunResult:
    """A trace's run on an index."""

    configuration: str
    load_s: float
    seconds: float
    operations: int
    operations_per_s: float
    bytes: int
    keys: int
    leaves: dict[str, int]
    depth: int
    checked: int


@with_options(workload=workload_of)
def run_trace_command(
    trace: TraceFile,
    plan: Annotated[
        Path | None,
        plan_option("an index plan, whose configuration is used; else the usual one"),
    ] = None,
    window: Annotated[
        int,
        typer.Option(min=1, help="Operations of a window, which run as batches by kind."),
        Former("--batch"),
    ] = 1,
    *,
    workload: "Workload",
) -> IndexRunResult:
    """Run a trace on an index: throughput, memory, leaf mix, and lookups that were checked.

    A wrong answer is an error.

    Example: headrace index run keys.npy --plan index.plan
    """
    from headrace.index.measure.files import read_trace
    from headrace.index.plan.plan import IndexPlan
    from headrace.index.run.trial import replay

    configuration = Configuration() if plan is None else IndexPlan.load(plan).configuration
    with terminal(stderr=True).status("reading") as status:
        parsed = read_trace(trace, workload)
        status.update(f"running {len(parsed):,} operations")
        result = replay(configuration, parsed, batch=window)
    rows = {"configuration": configuration.name, **result_rows(result)}
    terminal().print(facts("run", rows, everything=True))
    statistics = result.statistics
    return result_of(
        IndexRunResult,
        result,
        configuration=configuration.name,
        bytes=statistics["bytes"],
        keys=statistics["size"],
        leaves=dict(statistics["leaves"]),
        depth=statistics["depth"],
    )


def result_rows(result: "ReplayResult") -> dict[str, str]:
    """Return the figures of a run as texts by name."""
    statistics = result.statistics
    keys = max(statistics["size"], 1)
    leaves = [f"{count:,} {name}" for name, count in statistics["leaves"].items() if count]
    return {
        "loaded": f"in {duration(1e6 * result.load_s)}",
        "throughput": f"{result.operations_per_s / 1e6:.3g} M operations/s, "
        f"{result.operations:,} in {duration(1e6 * result.seconds)} of processor time",
        "memory": f"{statistics['bytes'] / keys:.3g} bytes per key, {statistics['size']:,} keys",
        "leaf mix": ", ".join(leaves) or "none",
        "depth": f"{statistics['depth']} inner nodes at most",
        "checked": f"{result.checked:,} keys found or scanned, none wrong",
    }
