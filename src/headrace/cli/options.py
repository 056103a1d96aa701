"""Options that several commands have."""

from typing import Annotated

import typer

Order = Annotated[
    str,
    typer.Option(help="Hosts of the testbed's ranks: rack, interleaved, random, or names."),
]

Seed = Annotated[int | None, typer.Option(help="For --order random: the same seed, same order.")]
