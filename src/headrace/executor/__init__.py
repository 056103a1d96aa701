"""Movement of bytes between the ranks of a group: proven programs, exchanges, statistics.

An `Executor` is one rank's end of its connections with all others: shared memory within a host,
TCP or TLS between hosts. It moves

- what a program says that a verifier has proven (`Executor.load`, `prepare`, `run`, `submit`);
- messages of arrays whose lengths both sides know (`send`, `receive`, `all_to_all`).

What moves has a priority and a deadline. A failure at one rank, or `Executor.abort`, ends the group
on all ranks, each of which gets the reason. docs/executor.md has the rules.
"""

from headrace._native import Call, Completions, DataType, Operator, Priority
from headrace.executor.background import background
from headrace.executor.exchange import Exchange, all_to_all, receive, send
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
    "Exchange",
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
    "all_to_all",
    "background",
    "empty_shared",
    "receive",
    "send",
]
