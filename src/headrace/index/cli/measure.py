"""``headrace index measure``: the profile of a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option
from headrace.errors import InputError
from headrace.units import parse_count, size

if TYPE_CHECKING:
    from headrace.index.measure.workload import Workload

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="Operations (.npz, .parquet), or keys alone (.npy, else SOSD's binary form), of which "
        "a workload is made by the options.",
        exists=True,
        dir_okay=False,
    ),
]
Loaded = Annotated[float, typer.Option(help="For keys alone: share that is loaded at first.")]
Inserts = Annotated[float, typer.Option(help="For keys alone: share of inserts.")]
Erases = Annotated[float, typer.Option(help="For keys alone: share of erases.")]
Scans = Annotated[float, typer.Option(help="For keys alone: share of scans of 100 keys.")]
Skew = Annotated[float, typer.Option(help="For keys alone: exponent of Zipf's law of finds.")]
Shuffle = Annotated[bool, typer.Option(help="For keys alone: let them arrive in random order.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Equal seeds give equal results.")]


def measure_trace_command(
    trace: TraceFile,
    output: Annotated[Path, output_option("File for the index profile.")],
    sample: Annotated[
        str | None,
        typer.Option(
            help="Limit of keys and operations of the sample together, such as 250K (of 1000); "
            "default: 6M."
        ),
    ] = None,
    loaded: Loaded = 0.5,
    inserts: Inserts = 0.5,
    erases: Erases = 0.0,
    scans: Scans = 0.0,
    skew: Skew = 0.0,
    shuffle: Shuffle = True,
    seed: SeedOption = 0,
) -> None:
    """Encode a trace: its image, how its keys deviate from lines, and a sample to run."""
    from headrace.index.measure.files import read_trace
    from headrace.index.measure.survey import SAMPLE, survey_trace

    most = SAMPLE if sample is None else parse_count(sample, "sample")
    if most < 1000:
        raise InputError(f"sample is {sample!r}, needs at least 1000")
    with terminal(stderr=True).status("reading") as status:
        workload = workload_of(loaded, inserts, erases, scans, skew, shuffle, seed)
        parsed = read_trace(trace, workload)
        status.update(f"encoding {len(parsed.loaded):,} keys, {len(parsed):,} operations")
        profile = survey_trace(parsed, most=most, seed=seed, provenance={"source": trace.name})
        profile.save(output)
    terminal().print(f"Wrote {text_of(output)} ({size(output.stat().st_size)}).", soft_wrap=True)


def workload_of(
    loaded: float,
    inserts: float,
    erases: float,
    scans: float,
    skew: float,
    shuffle: bool,
    seed: int,
) -> "Workload":
    """Return the workload of the options for keys alone; raises TraceError as `Workload`."""
    from headrace.index.measure.workload import Workload

    return Workload(
        loaded=loaded,
        inserts=inserts,
        erases=erases,
        scans=scans,
        skew=skew,
        shuffled=shuffle,
        seed=seed,
    )
