"""``headrace index measure``: the profile of a trace."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headrace.cli.answers import WrittenFile
from headrace.cli.console import print_written, terminal
from headrace.cli.options import count_option, output_option, with_options
from headrace.errors import InputError
from headrace.index.cli.workload import TraceFile, workload_of
from headrace.units import parse_count

if TYPE_CHECKING:
    from headrace.index.measure.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProfileResult:
    """A trace as it was encoded."""

    file: WrittenFile
    keys: int
    operations: int
    sampled_keys: int


@with_options(workload=workload_of)
def measure_trace_command(
    trace: TraceFile,
    output: Annotated[Path, output_option("File to write: the index profile.")],
    sample: Annotated[
        str | None,
        count_option("Limit of keys and operations of the sample together", default="6M"),
    ] = None,
    *,
    workload: "Workload",
) -> TraceProfileResult:
    """Encode a trace: its image, how its keys deviate from lines, and a sample to run.

    Example: headrace index measure keys.npy --inserts 0.1 -o keys.profile
    """
    from headrace.index.measure.files import read_trace
    from headrace.index.measure.survey import SAMPLE, survey_trace

    most = SAMPLE if sample is None else parse_count(sample, "--sample")
    if most < 1000:
        raise InputError(f"sample is {sample!r}, needs at least 1000")
    with terminal(stderr=True).status("reading") as status:
        parsed = read_trace(trace, workload)
        status.update(f"encoding {len(parsed.loaded):,} keys, {len(parsed):,} operations")
        profile = survey_trace(
            parsed, most=most, seed=workload.seed, provenance={"source": trace.name}
        )
        profile.save(output)
    print_written(output)
    return TraceProfileResult(
        file=WrittenFile.at(output),
        keys=len(parsed.loaded),
        operations=len(parsed),
        sampled_keys=len(profile.sample),
    )
