"""A learned index: an ordered map in memory that chooses its structure by its workload."""

from headrace.index.configuration import Configuration
from headrace.index.errors import CapError, ConfigurationError, TraceError
from headrace.index.trace import Trace

__all__ = ["CapError", "Configuration", "ConfigurationError", "Trace", "TraceError"]
