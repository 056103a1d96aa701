"""Options of planning, as parameters of the planner."""

from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.topology import Topology

if TYPE_CHECKING:
    from headrace.collectives.plan.request import Method

MAX_SEED = (1 << 31) - 1
"""The largest seed that every solver and search takes."""


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
