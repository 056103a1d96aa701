"""Collectives: tensors between ranks, measured, planned, run, adapted."""

from headrace.collectives.errors import (
    MscclError,
    MscclppError,
    ProgramError,
    SketchError,
    UnverifiedPlanError,
)
from headrace.collectives.settings import CollectiveSettings

__all__ = [
    "CollectiveSettings",
    "MscclError",
    "MscclppError",
    "ProgramError",
    "SketchError",
    "UnverifiedPlanError",
]
