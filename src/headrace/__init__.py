"""headrace: measure where a job's data moves, plan the movement, run the plan in PyTorch."""

from headrace.errors import (
    ArtifactError,
    CommunicationError,
    HeadraceError,
    InputError,
    ProgramError,
    TestbedError,
    TopologyError,
    UnverifiedPlanError,
    VerificationError,
)
from headrace.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CommunicationError",
    "HeadraceError",
    "InputError",
    "ProgramError",
    "Settings",
    "TestbedError",
    "TopologyError",
    "UnverifiedPlanError",
    "VerificationError",
    "__version__",
]
