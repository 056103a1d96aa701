"""Shared parts of a running job: steps, agreement of ranks on changes, metrics, records."""

from typing import TYPE_CHECKING

from headrace.facades import deferred_names

if TYPE_CHECKING:
    from headrace.job.records import Records

__all__ = [
    "Records",
]

_MODULES = {
    "Records": "records",
}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES)
