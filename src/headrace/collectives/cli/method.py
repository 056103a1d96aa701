"""Options of planning that several commands have, and what they stand for in the planner."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.former import Former
from headrace.collectives.demand import ROOTED, STANDARD, Collective
from headrace.errors import InputError
from headrace.topology import Topology

if TYPE_CHECKING:
    from headrace.collectives.plan.request import Method


class Model(StrEnum):
    """Cost models, by the names of the option."""

    FULL = "full"
    TABLE = "table"
    EXECUTOR = "executor"


class EffortLevel(StrEnum):
    """Search effort."""

    QUICK = "quick"
    NORMAL = "normal"
    THOROUGH = "thorough"


TotalBytes = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="Size of a call's whole buffer (the gathered output, the reduced vector, the "
        "all-to-all input), such as 512K, 16M or 1G, in powers of 1024; or 16MB, of 1000.",
    ),
]
Root = Annotated[int, typer.Option(help="Root, of broadcast, reduce, gather and scatter.")]
CostModelName = Annotated[
    Model,
    typer.Option(
        "--cost-model",
        help="Cost model: executor (headrace's own, on TCP), full (as on GPUs), table (full "
        "without alpha inside a host).",
    ),
    Former("--model"),
]
SearchEffort = Annotated[EffortLevel, typer.Option(help="Search effort.")]


def charged(
    topology: Topology, model: Model, effort: EffortLevel, seed: int
) -> "tuple[Topology, Method]":
    """Return the topology with the costs of `model`, and the method that plans by it."""
    from headrace.collectives.plan.cost.model import EXECUTOR, FULL
    from headrace.collectives.plan.request import Method
    from headrace.collectives.run.synthesis import NativeSearch
    from headrace.topology import without_local_alpha

    method = Method(
        model=EXECUTOR if model is Model.EXECUTOR else FULL,
        engine=NativeSearch(),
        seed=seed,
        effort=effort.value,
    )
    return without_local_alpha(topology) if model is Model.TABLE else topology, method


def check_named(collective: Collective, root: int) -> None:
    """Refuse collectives that only a demand describes, and a root of one without a root."""
    if collective not in STANDARD:
        raise InputError(
            f"--collective is {collective}, which only a demand describes; needs one of "
            f"{', '.join(allowed.value for allowed in STANDARD)}"
        )
    check_root(collective, root)


def check_root(collective: Collective, root: int) -> None:
    """Refuse a root of a collective without one."""
    if root and collective not in ROOTED:
        raise InputError(f"--root is {root}, but {collective} has no root; leave it out")
