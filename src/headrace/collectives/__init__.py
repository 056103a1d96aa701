"""Collectives: tensors between ranks, measured, planned, run, adapted."""

from typing import TYPE_CHECKING

from headrace.collectives.errors import (
    MscclError,
    MscclppError,
    ProgramError,
    SketchError,
    UnverifiedPlanError,
)
from headrace.collectives.settings import CollectiveSettings

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.collectives.plan.book import PlanBook
    from headrace.collectives.plan.predict import Predictor
    from headrace.topology import Topology
    from headrace.topology.profile import Profile

__all__ = [
    "CollectiveSettings",
    "MscclError",
    "MscclppError",
    "ProgramError",
    "SketchError",
    "UnverifiedPlanError",
    "predictor",
]


def predictor(source: "Topology | Profile | PlanBook | Path") -> "Predictor":
    """Return the predicted times of collectives on a network, by its plan book or by templates.

    Parameters
    ----------
    source : a plan book, a topology or profile, or a file that holds one of these.

    Raises
    ------
    ArtifactError : naming the file, and what it would need to hold.
    """
    from headrace.collectives.plan.predict import predictor_of  # planning is heavy to import

    return predictor_of(source)
