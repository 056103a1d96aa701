"""Collectives: tensors between ranks, measured, planned, run, adapted."""

from headrace.collectives.errors import (
    MscclError,
    MscclppError,
    ProgramError,
    SketchError,
    UnverifiedPlanError,
)

__all__ = ["MscclError", "MscclppError", "ProgramError", "SketchError", "UnverifiedPlanError"]
