"""Options of ``headrace index`` for a trace, and for the workload that is made of keys alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.former import Former
from headrace.cli.options import Seed

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


def workload_of(
    loaded: Annotated[
        float, typer.Option(help="For keys alone: share that is loaded at first.")
    ] = 0.5,
    inserts: Annotated[float, typer.Option(help="For keys alone: share of inserts.")] = 0.5,
    erases: Annotated[float, typer.Option(help="For keys alone: share of erases.")] = 0.0,
    scans: Annotated[float, typer.Option(help="For keys alone: share of scans of 100 keys.")] = 0.0,
    zipf: Annotated[
        float,
        typer.Option(help="For keys alone: exponent of Zipf's law of finds.", min=0.0),
        Former("--skew"),
    ] = 0.0,
    shuffle: Annotated[
        bool, typer.Option(help="For keys alone: let them arrive in random order.")
    ] = True,
    seed: Seed = 0,
) -> "Workload":
    """Return the workload of the options for keys alone; raises TraceError as `Workload`."""
    from headrace.index.measure.workload import Workload

    return Workload(
        loaded=loaded,
        inserts=inserts,
        erases=erases,
        scans=scans,
        skew=zipf,
        shuffled=shuffle,
        seed=seed,
    )
