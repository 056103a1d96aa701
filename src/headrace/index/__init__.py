"""A learned index: an ordered map in memory that chooses its structure by its workload."""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.extras import require_metrics
from headrace.facades import deferred_names
from headrace.index.configuration import Configuration
from headrace.index.errors import (
    CapError,
    ChoiceError,
    ConfigurationError,
    FolderError,
    InvariantError,
    KeysError,
    PlanningError,
    TraceError,
)
from headrace.index.trace import Trace

if TYPE_CHECKING:
    from headrace.index.adapt.agent import IndexAdaptation
    from headrace.index.adapt.decide import (
        SeenActivity,
        TuningAction,
        TuningLimits,
        TuningOutcome,
        TuningPhase,
        TuningState,
    )
    from headrace.index.adapt.metrics import IndexMetrics
    from headrace.index.adapt.propose import ConfigurationProposer, Proposal
    from headrace.index.adapt.workload import SeenWorkload
    from headrace.index.plan.plan import ConfigurationCandidate, IndexPlan
    from headrace.index.profile import IndexProfile, TraceEncoding
    from headrace.index.run.cursor import IndexCursor
    from headrace.index.run.durable import DurableBatch, DurableIndex, open  # noqa: A004
    from headrace.index.run.index import Index
    from headrace.index.run.items import IndexItems
    from headrace.index.run.recorder import SelectedKeys, TraceRecorder
    from headrace.index.run.sharded import ShardedIndex

__all__ = [
    "CapError",
    "ChoiceError",
    "Configuration",
    "ConfigurationCandidate",
    "ConfigurationError",
    "ConfigurationProposer",
    "DurableBatch",
    "DurableIndex",
    "FolderError",
    "Index",
    "IndexAdaptation",
    "IndexCursor",
    "IndexItems",
    "IndexMetrics",
    "IndexPlan",
    "IndexProfile",
    "InvariantError",
    "KeysError",
    "PlanningError",
    "Proposal",
    "SeenActivity",
    "SeenWorkload",
    "SelectedKeys",
    "ShardedIndex",
    "Trace",
    "TraceEncoding",
    "TraceError",
    "TraceRecorder",
    "TuningAction",
    "TuningLimits",
    "TuningOutcome",
    "TuningPhase",
    "TuningState",
    "include",
    "open",
]

_MODULES = {
    "ConfigurationCandidate": "plan.plan",
    "ConfigurationProposer": "adapt.propose",
    "DurableBatch": "run.durable",
    "DurableIndex": "run.durable",
    "Index": "run.index",
    "IndexAdaptation": "adapt.agent",
    "IndexCursor": "run.cursor",
    "IndexItems": "run.items",
    "IndexMetrics": "adapt.metrics",
    "IndexPlan": "plan.plan",
    "IndexProfile": "profile",
    "Proposal": "adapt.propose",
    "SeenActivity": "adapt.decide",
    "SeenWorkload": "adapt.workload",
    "SelectedKeys": "run.recorder",
    "ShardedIndex": "run.sharded",
    "TraceEncoding": "profile",
    "TraceRecorder": "run.recorder",
    "TuningAction": "adapt.decide",
    "TuningLimits": "adapt.decide",
    "TuningOutcome": "adapt.decide",
    "TuningPhase": "adapt.decide",
    "TuningState": "adapt.decide",
    "open": "run.durable",
}
_EXTRAS = {"IndexMetrics": require_metrics}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES, _EXTRAS)


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
