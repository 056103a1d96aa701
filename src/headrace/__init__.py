"""headrace: measure where a job's data moves, plan the movement, run the plan in PyTorch."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.errors import (
    ArtifactError,
    CommunicationError,
    ForkError,
    HeadraceError,
    InputError,
    ModelError,
    SymmetryError,
    TestbedError,
    TopologyError,
    VerificationError,
)
from headrace.facades import deferred_names, find_former_modules

if TYPE_CHECKING:
    from headrace.index import Index
    from headrace.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CommunicationError",
    "ForkError",
    "HeadraceError",
    "Index",
    "InputError",
    "ModelError",
    "Settings",
    "SymmetryError",
    "TestbedError",
    "TopologyError",
    "VerificationError",
    "__version__",
]

_load, __dir__ = deferred_names(__name__, __all__, {"Index": "index", "Settings": "settings"})
find_former_modules()


def __getattr__(name: str) -> object:
    """Load a name or a subpackage when it is asked for: commands can be interrupted early."""
    if name in __all__:
        return _load(name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
