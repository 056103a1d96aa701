"""Movement of bytes between the ranks of a group: proven programs, exchanges, statistics.

An `Executor` is one rank's end of its connections with all others: shared memory within a host,
TCP or TLS between hosts. What it moves is

- a program that a verifier has proven (`Executor.load`, `prepare`, `run`, `submit`).

What moves has a priority and a deadline. A failure at one rank, or `Executor.abort`, ends the group
on all ranks, each of which gets the reason. docs/executor.md has the rules.
"""

from headrace._native import Call, Completions, DataType, Operator, Priority
from headrace.executor.background import background
from headrace.executor.executor import DEFAULT_DEADLINE_S, Executor, Recorded, Segment
from headrace.executor.programs import (
    Columns,
    ExecutableProgram,
    LoadedProgram,
    ProgramDemand,
    ProgramProof,
)
from headrace.executor.shared_buffer import empty_shared
from headrace.executor.statistics import ConnectionStatistics, StatisticsReader

__all__ = [
    "DEFAULT_DEADLINE_S",
    "Call",
    "Columns",
    "Completions",
    "ConnectionStatistics",
    "DataType",
    "ExecutableProgram",
    "Executor",
    "LoadedProgram",
    "Operator",
    "Priority",
    "ProgramDemand",
    "ProgramProof",
    "Recorded",
    "Segment",
    "StatisticsReader",
    "background",
    "empty_shared",
]
