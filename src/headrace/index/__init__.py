"""A learned index: an ordered map in memory that chooses its structure by its workload."""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.index.configuration import Configuration
from headrace.index.errors import (
    CapError,
    ConfigurationError,
    InvariantError,
    KeysError,
    TraceError,
)
from headrace.index.trace import Trace

if TYPE_CHECKING:
    from headrace.index.adapt.agent import IndexAdaptation
    from headrace.index.run.index import Index
    from headrace.index.run.recorder import TraceRecorder

__all__ = [
    "CapError",
    "Configuration",
    "ConfigurationError",
    "Index",
    "IndexAdaptation",
    "InvariantError",
    "KeysError",
    "Trace",
    "TraceError",
    "TraceRecorder",
    "include",
]


def include() -> Path:
    """Return the folder for a compiler's ``-I``: of the C++ headers ``headrace/index/*.hpp``.

    CMake's ``find_package(headrace)`` finds them with ``CMAKE_PREFIX_PATH`` set to its parent, or
    in a checkout to ``build/stage/headrace``.

    Raises
    ------
    HeadraceError : this installation has no headers.
    """
    folder = Path(__file__).parents[1] / "include"
    if not (folder / "headrace" / "index").is_dir():
        raise HeadraceError(f"{folder} has no headers: in a checkout make them by `make native`")
    return folder


def __getattr__(name: str) -> object:
    """Load the native module when it is needed: planning runs without it."""
    if name == "IndexAdaptation":
        from headrace.index.adapt.agent import IndexAdaptation

        return IndexAdaptation
    if name == "Index":
        from headrace.index.run.index import Index

        return Index
    if name == "TraceRecorder":
        from headrace.index.run.recorder import TraceRecorder

        return TraceRecorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
