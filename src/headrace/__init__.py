"""headrace: measure where a job's data moves, plan the movement, run the plan in PyTorch."""

from typing import TYPE_CHECKING

from headrace.errors import (
    ArtifactError,
    CommunicationError,
    HeadraceError,
    InputError,
    TestbedError,
    TopologyError,
    VerificationError,
)

if TYPE_CHECKING:
    from headrace.index import Index
    from headrace.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CommunicationError",
    "HeadraceError",
    "Index",
    "InputError",
    "Settings",
    "TestbedError",
    "TopologyError",
    "VerificationError",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load a name when it is asked for: commands can be interrupted from the start."""
    if name == "Index":
        from headrace.index import Index

        return Index
    if name == "Settings":
        from headrace.settings import Settings

        return Settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
