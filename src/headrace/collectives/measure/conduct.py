"""One rank conducts, the others follow: every rank runs the same probes in the same order.

Rank 0 broadcasts each probe, all ranks run it, rank 0 gathers how long each of them took. All
three are programs on the same executor, so nothing else (no torch, no launcher) has to work.
Decisions are made at rank 0 alone; the others agree by construction.
"""

import re
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.measure.probe import Flow, Manner, Probe, segments
from headrace.collectives.plan.lower import lower
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Program, Schedule, Transfer
from headrace.errors import CommunicationError

MAX_REPEATS = 8
_FIELDS = 5  # command, manner, chunks, repeats, number of flows
_LEAST_FLOWS = 8


class Runner(Protocol):
    """What measuring needs of an executor."""

    rank: int

    def load(self, program: Program, proof: Proof) -> Any:
        """Take a proven program."""
        ...

    def run(
        self,
        loaded: Any,
        segments: Sequence[tuple[int, int, int, int]],
        *,
        dtype: str,
        operator: str = "sum",
        deadline_s: float = 60.0,
    ) -> None:
        """Run it on these buffers and come back when it is done here."""
        ...


class Prober(Protocol):
    """What can carry out a probe: the network itself, or a model of one."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    def measure(self, probe: Probe) -> np.ndarray:
        """Run a probe; returns (ranks, repeats) microseconds that it took at every rank."""
        ...


class _Command(IntEnum):
    STOP = 0
    PROBE = 1


class Member:
    """One rank's part: its buffers, its loaded programs, and how to run a probe once.

    Parameters
    ----------
    runner : the executor, connected.
    hosts : host of every rank, for error messages.
    deadline_s : longest that one probe may take.
    patience_s : longest wait for the next probe while rank 0 thinks.
    """

    def __init__(
        self,
        runner: Runner,
        hosts: Sequence[str],
        *,
        deadline_s: float = 20.0,
        patience_s: float = 60.0,
        clock_us: Callable[[], float] = lambda: time.perf_counter_ns() / 1e3,
    ) -> None:
        self.rank = runner.rank
        self.ranks = len(hosts)
        self._runner = runner
        self._hosts = tuple(hosts)
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._clock_us = clock_us
        self._loaded: dict[object, Any] = {}
        self._command = np.zeros(_FIELDS + 3 * max(_LEAST_FLOWS, self.ranks), dtype=np.int64)
        self._times = np.zeros((self.ranks, MAX_REPEATS))
        self._flags = np.zeros(self.ranks, dtype=np.uint8)
        self._inputs = np.ones(0, dtype=np.uint8)
        self._outputs = np.ones(0, dtype=np.uint8)

    def measure(self, probe: Probe) -> np.ndarray:
        """Conduct one probe (rank 0 only); see `Prober`."""
        assert self.rank == 0, "only rank 0 conducts"
        self._command[:] = 0
        flows = [value for flow in probe.flows for value in flow]
        head = (_Command.PROBE, probe.manner, probe.chunks, probe.repeats, len(probe.flows))
        self._command[: _FIELDS + len(flows)] = (*head, *flows)
        self._broadcast()
        self._take_part(probe)
        return self._times[:, : probe.repeats].copy()

    def stop(self) -> None:
        """Send the followers home (rank 0 only)."""
        self._command[:] = 0
        self._broadcast()

    def follow(self) -> None:
        """Carry out what rank 0 says until it says stop."""
        while True:
            self._broadcast()
            command, manner, chunks, repeats, count = self._command[:_FIELDS].tolist()
            if command == _Command.STOP:
                return
            rows = self._command[_FIELDS : _FIELDS + 3 * count].reshape(-1, 3).tolist()
            self._take_part(
                Probe(
                    ranks=self.ranks,
                    manner=Manner(manner),
                    chunks=chunks,
                    repeats=repeats,
                    flows=tuple(Flow(*row) for row in rows),
                )
            )

    def _take_part(self, probe: Probe) -> None:
        sizes = probe.block_bytes()
        self._grow(int(sizes[self.rank].sum()), int(sizes[:, self.rank].sum()))
        loaded = self._load(probe.shape, probe.program)
        rows = segments(
            sizes, self.rank, probe.chunks, self._inputs.ctypes.data, self._outputs.ctypes.data
        )
        mine = self._times[self.rank]
        for repeat in range(probe.repeats):
            self._barrier()  # else what came late is timed too, or flows do not overlap
            started = self._clock_us()
            self._run(loaded, rows, "uint8", self._deadline_s)
            mine[repeat] = self._clock_us() - started
        self._gather()

    def _grow(self, inputs: int, outputs: int) -> None:
        # ones, not empty: a page fault inside a timed run would be taken for the network
        if len(self._inputs) < inputs:
            self._inputs = np.ones(inputs, dtype=np.uint8)
        if len(self._outputs) < outputs:
            self._outputs = np.ones(outputs, dtype=np.uint8)

    def _broadcast(self) -> None:
        rows = [(self._command.ctypes.data, len(self._command), 1, 1)]
        loaded = self._load("broadcast", lambda: _direct(Collective.BROADCAST, self.ranks))
        self._run(loaded, rows, "int64", self._patience_s)

    def _barrier(self) -> None:
        loaded = self._load("barrier", lambda: _direct(Collective.ALLGATHER, self.ranks))
        self._run(loaded, [(self._flags.ctypes.data, 1, self.ranks, 1)], "uint8", self._deadline_s)

    def _gather(self) -> None:
        rows = [(self._times.ctypes.data, MAX_REPEATS, self.ranks, 1)]
        loaded = self._load("gather", lambda: _direct(Collective.GATHER, self.ranks))
        self._run(loaded, rows, "float64", self._deadline_s)

    def _load(self, key: object, make: Callable[[], Program]) -> Any:
        if key not in self._loaded:
            program = make()
            self._loaded[key] = self._runner.load(program, verify(program))
        return self._loaded[key]

    def _run(
        self, loaded: Any, rows: list[tuple[int, int, int, int]], dtype: str, deadline_s: float
    ) -> None:
        try:
            self._runner.run(loaded, rows, dtype=dtype, deadline_s=deadline_s)
        except CommunicationError as error:
            raise CommunicationError(name_hosts(str(error), self.rank, self._hosts)) from error


def name_hosts(message: str, rank: int, hosts: Sequence[str]) -> str:
    """Return an executor's error with the hosts of the ranks that it blames."""
    blamed = {int(found) for found in re.findall(r"rank (\d+)", message)} - {rank}
    named = [f"rank {peer} is host '{hosts[peer]}'" for peer in sorted(blamed) if peer < len(hosts)]
    text = f"measuring stopped at rank {rank} on host '{hosts[rank]}': {message}"
    return f"{text} ({', '.join(named)})" if named else text


def _direct(collective: Collective, ranks: int) -> Program:
    """Return a broadcast from rank 0, a gather to it, or an allgather, by direct messages."""
    if collective is Collective.BROADCAST:
        transfers = [Transfer(0, peer, 0, 0) for peer in range(1, ranks)]
    else:
        receivers = range(ranks) if collective is Collective.ALLGATHER else range(1)
        transfers = [
            Transfer(peer, receiver, peer, peer)
            for receiver in receivers
            for peer in range(ranks)
            if peer != receiver
        ]
    return lower(Schedule.of(Demand(collective=collective, ranks=ranks), transfers))
