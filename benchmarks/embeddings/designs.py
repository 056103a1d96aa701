"""Processes of a design of caches: a server on a host of its own, the cacher on another."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.jobs import WHERE
from headrace.launch.roles import Role, Roles
from headrace.testbed import Testbed

PREFETCH = 8
"""Batches between a row's fetch and its use."""

PREFETCHED = 4
"""Batches that a trainer has with their rows, at most."""

SLOTS = 800_000
_START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A design of caches, and its job."""

    synchronisation: str
    trainers: int
    dim: int
    lookahead: int


@contextmanager
def connected(testbed: Testbed, design: Design) -> Generator[dict[str, Any]]:
    """Start a design's processes; yields the trainers' task to connect to them."""
    task: dict[str, Any] = {
        "connect": design.synchronisation,
        "slots": SLOTS,
        "ahead": PREFETCHED,
    }
    with ExitStack() as stack:
        for place, kind in enumerate(("server", "cacher")):
            host = testbed.hosts[design.trainers + place]
            role = Role(
                name=kind,
                argv=[sys.executable, "-m", "benchmarks.embeddings.stand_in"],
                start=partial(testbed.popen, host.name),
                env={**WHERE, "OMP_NUM_THREADS": "1"},
            )
            roles = stack.enter_context(Roles({kind: role}))
            options = {
                "kind": kind,
                "listen": host.address,
                "trainers": design.trainers,
                "dim": design.dim,
                "slots": SLOTS,
                "lookahead": design.lookahead,
                "prefetch": PREFETCH,
                "synchronisation": design.synchronisation,
            }
            roles.send(kind, options)
            answer = roles.expect("starting", _START_S)
            assert answer is not None
            task[kind] = answer[1]["address"]
        yield task
