"""Processes of a design of caches: a server on a host of its own, cacher and readers on another."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.embeddings.drawn import BATCH, SKEW
from benchmarks.harness import ROOT
from headrace.embeddings import CriteoData, EmbeddingTable, InitialValues, Synchronisation
from headrace.embeddings.data.generate import KAGGLE_ROWS, ClickSource
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.job_processes import JobHosts, JobOptions, JobProcesses, RoleHost
from headrace.embeddings.tables import table_groups
from headrace.testbed import Testbed

PREFETCH = 4
"""Batches between a row's fetch and its use."""

SLOTS = 900_000
DEADLINE_S = 900.0
"""Of calls: a design waits while others have their turns."""
_FILE_BATCHES = 130
"""More than the lookahead: rows of the next pass over the file are none of its window."""

_PASSES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A design of caches, and its job."""

    synchronisation: str
    trainers: int
    dim: int
    lookahead: int


def clicks() -> Path:
    """Return a file of clicks whose accesses are Kaggle's and drawn by Zipf's law; made once."""
    path = ROOT.parent / "build" / f"clicks-{str(SKEW).replace(':', '-')}-{_FILE_BATCHES}.tsv"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            for lines in ClickSource(skew=SKEW).lines(_FILE_BATCHES * BATCH):
                file.write(lines)
        os.replace(unfinished, path)
    return path


def description(dim: int) -> JobDescription:
    """Return the job: 26 tables of hashed rows, updated by SGD, on the clicks again and again."""
    tables = tuple(
        EmbeddingTable(name=f"table{number}", rows=0, dim=dim, initial=InitialValues(scale=0.01))
        for number in range(len(KAGGLE_ROWS))
    )
    return JobDescription(
        tables=tables,
        columns=tuple((number,) for number in range(len(tables))),
        groups=table_groups(tables),
        slots=(SLOTS,),
        seed=0,
        data=CriteoData.of([clicks()] * _PASSES, batch=BATCH).to_fields(),
    )


@contextmanager
def connected(testbed: Testbed, design: Design) -> Generator[dict[str, Any]]:
    """Start a design's processes; yields the trainers' task to connect to them."""
    hosts = [
        RoleHost(start=partial(testbed.popen, host.name), address=host.address)
        for host in testbed.hosts
    ]
    server, cacher = hosts[design.trainers], hosts[design.trainers + 1]
    clicks()
    with JobProcesses(
        JobOptions(
            lookahead=design.lookahead,
            prefetch=PREFETCH,
            synchronisation=Synchronisation(design.synchronisation),
            deadline_s=DEADLINE_S,
        ),
        JobHosts(
            trainers=tuple(hosts[: design.trainers]),
            servers=(server,),
            readers=(cacher,),
            cacher=cacher,
        ),
    ) as processes:
        yield {
            "connect": design.synchronisation,
            "cacher": processes.address,
            "secret": processes.secret,
        }
