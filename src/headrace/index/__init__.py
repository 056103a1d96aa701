"""A learned index: an ordered map in memory that chooses its structure by its workload."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.extras import require
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
    from headrace.index.adapt.metrics import IndexMetrics
    from headrace.index.run.index import Index
    from headrace.index.run.recorder import TraceRecorder
    from headrace.index.run.sharded import ShardedIndex

__all__ = [
    "CapError",
    "Configuration",
    "ConfigurationError",
    "Index",
    "IndexAdaptation",
    "IndexMetrics",
    "InvariantError",
    "KeysError",
    "ShardedIndex",
    "Trace",
    "TraceError",
    "TraceRecorder",
    "include",
]

_LATER = {
    "Index": "run.index",
    "IndexAdaptation": "adapt.agent",
    "IndexMetrics": "adapt.metrics",
    "ShardedIndex": "run.sharded",
    "TraceRecorder": "run.recorder",
}


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
    """Load what needs the native module, or an extra, when it is used: planning runs without."""
    if name == "IndexMetrics":
        require("prometheus_client", "metrics", name)
    if name in _LATER:
        return getattr(import_module(f"headrace.index.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
