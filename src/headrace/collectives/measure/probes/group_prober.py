"""Probes over an executor group: rank 0 leads, the others run the same probes in the same order.

The leader broadcasts each probe, all ranks run it, and the leader gathers the time that each took.
All three are programs on the same executor, so nothing else (no torch, no launcher) has to work.
Only the leader decides; the followers agree by construction.

A rank that dies ends its executor group. With a `Regroup` the survivors form another one: ranks
keep their numbers, and the lowest of them leads.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.measure.probes.probe import ACK_BYTES, Flow, Manner, Probe, segments
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Program, Schedule, Transfer
from headrace.errors import CommunicationError
from headrace.facades import offered_by
from headrace.job.load import LoadWatch, MachineLoad

MAX_REPEATS = 64
_FIELDS = 5  # command, manner, chunks, repeats, number of flows
_LEAST_FLOWS = 8


@offered_by("headrace.collectives.measure")
class Runner(Protocol):
    """Executor interface of measuring; `statistics_reader`, if any, has kernel round trips."""

    rank: int

    def load(self, program: Program, proof: Proof) -> Any:
        """Load a proven program."""
        ...

    def prepare(
        self,
        loaded: Any,
        segments: Sequence[tuple[int, int, int, int]],
        *,
        deadline_s: float,
    ) -> Any:
        """Bind it to these buffers, of bytes, and return the call for `run`."""
        ...

    def run(self, call: Any) -> None:
        """Run a prepared call; return once it is done at this rank."""
        ...


Regroup = Callable[[Sequence[int], str], tuple[Runner, Sequence[int]]]
"""Formation of the next executor group after a loss, called at every survivor.

Leaves the group of these members, which failed for this reason, and joins that of the survivors.
Returns its executor there, connected, and the members that remain, ascending; place k of the new
group is the k-th of them. Raises CommunicationError if no group can be formed.
"""


@offered_by("headrace.collectives.measure")
class Prober(Protocol):
    """Interface that runs probes: over a real network, or a simulated one."""

    @property
    def ranks(self) -> int:
        """Number of ranks, lost ones included."""
        ...

    def measure(self, probe: Probe) -> np.ndarray:
        """Run a probe; returns (ranks, repeats) microseconds that it took at every rank.

        Raises
        ------
        CommunicationError : if a rank was lost; see `survive`.
        """
        ...

    def round_trips(self) -> np.ndarray:
        """Return (ranks, ranks) the kernel's least round trips in us from row to column, or nan."""
        ...

    @property
    def lost(self) -> Mapping[int, str]:
        """Lost rank -> reason."""
        ...

    def survive(self, error: CommunicationError) -> None:
        """Continue after `error` without the ranks that it lost.

        Raises
        ------
        CommunicationError : `error`, or the reason why the survivors cannot continue.
        """
        ...


class _Command(IntEnum):
    STOP = 0
    PROBE = 1
    ROUND_TRIPS = 2
    LOADS = 3


class GroupProber:
    """`Prober` of one rank over an executor group, with its buffers and loaded programs.

    Parameters
    ----------
    runner : the executor, connected.
    hosts : host of every rank, for error messages.
    regroup : forms the group of the survivors; without it, the loss of a rank is an error.
    most_losses : losses after which the next one is an error.
    deadline_s : limit of one probe.
    idle_timeout_s : limit of the wait for the next command while the leader computes.

    Attributes
    ----------
    lost : lost rank -> reason.
    """

    def __init__(
        self,
        runner: Runner,
        hosts: Sequence[str],
        *,
        regroup: Regroup | None = None,
        most_losses: int = 3,
        deadline_s: float = 10.0,
        idle_timeout_s: float = 60.0,
        clock_us: Callable[[], float] = lambda: time.perf_counter_ns() / 1e3,
    ) -> None:
        self.rank = runner.rank
        self.ranks = len(hosts)
        self.lost: dict[int, str] = {}
        self._hosts = tuple(hosts)
        self._regroup = regroup
        self._losses_left = most_losses
        self._deadline_s = deadline_s
        self._idle_timeout_s = idle_timeout_s
        self._clock_us = clock_us
        self._command = np.zeros(_FIELDS + 3 * max(_LEAST_FLOWS, self.ranks), dtype=np.int64)
        self._times = np.zeros(self.ranks * max(MAX_REPEATS, self.ranks))
        self._flag = np.zeros(1, dtype=np.uint8)
        self._inputs = np.ones(0, dtype=np.uint8)
        self._outputs = np.ones(0, dtype=np.uint8)
        self._watch = LoadWatch()
        self._join(runner, range(self.ranks))

    def _join(self, runner: Runner, members: Sequence[int]) -> None:
        self._runner = runner
        self._members = tuple(members)
        self._place = self._members.index(self.rank)
        self._loaded: dict[object, Any] = {}

    # ---- the leader's side ----------------------------------------------------------------

    def measure(self, probe: Probe) -> np.ndarray:
        """Lead one probe; see `Prober`. Rows of lost ranks are nan."""
        place = {rank: index for index, rank in enumerate(self._members)}
        flows = [(place[flow.src], place[flow.dst], flow.chunk_bytes) for flow in probe.flows]
        self._send_command(
            _Command.PROBE,
            (probe.manner, probe.chunks, probe.repeats, len(flows)),
            [value for flow in flows for value in flow],
        )
        times = np.full((self.ranks, probe.repeats), np.nan)
        times[list(self._members)] = self._execute()
        return times

    def round_trips(self) -> np.ndarray:
        """Gather the kernels' least round trips; see `Prober`."""
        self._send_command(_Command.ROUND_TRIPS)
        round_trip_us = np.full((self.ranks, self.ranks), np.nan)
        round_trip_us[np.ix_(self._members, self._members)] = self._execute()
        return round_trip_us

    def loads(self) -> list[MachineLoad]:
        """Gather the loads of the members' machines since their probers were made.

        Raises
        ------
        CommunicationError : if a rank was lost; see `survive`.
        """
        self._send_command(_Command.LOADS)
        return [MachineLoad.from_numbers(row) for row in self._execute().tolist()]

    def stop(self) -> None:
        """Stop the followers."""
        while True:
            try:
                return self._send_command(_Command.STOP)
            except CommunicationError as error:
                self.survive(error)

    def _send_command(
        self, command: _Command, head: Sequence[int] = (), flows: Sequence[int] = ()
    ) -> None:
        assert self._place == 0, "only the leader sends commands"
        self._command[:] = 0
        self._command[: 1 + len(head)] = (command, *head)
        self._command[_FIELDS : _FIELDS + len(flows)] = flows
        self._broadcast()

    # ---- every rank's side ----------------------------------------------------------------

    def follow(self) -> bool:
        """Execute the leader's commands until `STOP`.

        Returns
        -------
        bool
            True if this rank leads: from the start, or because all lower ranks were lost.
        """
        while self._place != 0:
            try:
                self._broadcast()
                if self._command[0] == _Command.STOP:
                    return False
                self._execute()
            except CommunicationError as error:
                self.survive(error)
        return True

    def survive(self, error: CommunicationError) -> None:
        """Join the group of the survivors after `error`; see `Prober`."""
        if self._regroup is None or self._losses_left < 1:
            raise error
        self._losses_left -= 1
        before = self._members
        runner, members = self._regroup(before, str(error))
        self._join(runner, members)
        self.lost.update((rank, str(error)) for rank in before if rank not in self._members)

    def _execute(self) -> np.ndarray:
        """Execute the current command; returns the gathered values, complete at the leader."""
        command, manner, chunks, repeats, count = self._command[:_FIELDS].tolist()
        if command == _Command.ROUND_TRIPS:
            return self._gather_row(self._round_trips())
        if command == _Command.LOADS:
            return self._gather_row(self._watch.load().numbers)
        rows = self._command[_FIELDS : _FIELDS + 3 * count].reshape(-1, 3).tolist()
        return self._run_probe(
            Probe(
                ranks=len(self._members),
                manner=Manner(manner),
                chunks=chunks,
                repeats=repeats,
                flows=tuple(Flow(*row) for row in rows),
            )
        )

    def _run_probe(self, probe: Probe) -> np.ndarray:
        flowing = sorted({rank for flow in probe.flows for rank in flow[:2]})
        paces_itself = probe.is_echo
        if self._place in flowing:
            barrier = self._load(("barrier", *flowing), lambda: _barrier(probe.ranks, flowing))
        else:
            # a rank without a step in the probe runs an equally empty part of a simpler one, whose
            # program is cheaper to prove
            barrier, probe = None, _idle_probe(probe, self._place)
        sizes = probe.block_bytes(self._place)
        self._grow(*(int(side.sum()) for side in sizes))
        loaded = self._load(probe.shape, probe.program)
        rows = segments(sizes, probe.chunks, self._inputs.ctypes.data, self._outputs.ctypes.data)
        mine = self._gathered(probe.repeats)[self._place]
        flag = [(self._flag.ctypes.data, 1, 1, 1)]
        for repeat in range(probe.repeats):
            if repeat == 0 or not paces_itself:
                # without a barrier late starts are timed too, or flows do not overlap
                if barrier is None:
                    self._run(loaded, rows, self._deadline_s)
                else:
                    self._run(barrier, flag, self._deadline_s)
            started = self._clock_us()
            self._run(loaded, rows, self._deadline_s)
            mine[repeat] = self._clock_us() - started
        return self._gather(probe.repeats)

    def _round_trips(self) -> np.ndarray:
        """Return the kernel's recent least round trip to every member (TCP_INFO), us or nan."""
        round_trip_us = np.full(len(self._members), np.nan)
        reader = getattr(self._runner, "statistics_reader", None)
        if reader is not None:
            seen = reader().read()
            round_trip_us[seen.peer] = seen.min_rtt_us
        return round_trip_us

    def _grow(self, inputs: int, outputs: int) -> None:
        # ones, not empty: a page fault inside a timed run would count as network time
        if len(self._inputs) < inputs:
            self._inputs = np.ones(inputs, dtype=np.uint8)
        if len(self._outputs) < outputs:
            self._outputs = np.ones(outputs, dtype=np.uint8)

    def _broadcast(self) -> None:
        rows = [(self._command.ctypes.data, self._command.nbytes, 1, 1)]
        loaded = self._load("broadcast", lambda: _direct(Collective.BROADCAST, len(self._members)))
        self._run(loaded, rows, self._idle_timeout_s)

    def _gathered(self, columns: int) -> np.ndarray:
        """Return the buffer of `_gather`: (members, columns)."""
        members = len(self._members)
        if len(self._times) < members * columns:
            self._times = np.zeros(members * columns)
        return self._times[: members * columns].reshape(members, columns)

    def _gather_row(self, mine: Sequence[float] | np.ndarray) -> np.ndarray:
        self._gathered(len(mine))[self._place] = mine
        return self._gather(len(mine))

    def _gather(self, columns: int) -> np.ndarray:
        rows = [(self._times.ctypes.data, columns * self._times.itemsize, len(self._members), 1)]
        loaded = self._load("gather", lambda: _direct(Collective.GATHER, len(self._members)))
        self._run(loaded, rows, self._deadline_s)
        return self._gathered(columns).copy()

    def _load(self, key: object, make: Callable[[], Program]) -> Any:
        if key not in self._loaded:
            program = make()
            self._loaded[key] = self._runner.load(program, verify(program))
        return self._loaded[key]

    def _run(self, loaded: Any, rows: list[tuple[int, int, int, int]], deadline_s: float) -> None:
        try:
            self._runner.run(self._runner.prepare(loaded, rows, deadline_s=deadline_s))
        except CommunicationError as error:
            hosts = [self._hosts[rank] for rank in self._members]
            raise CommunicationError(name_hosts(str(error), self._place, hosts)) from error


def name_hosts(message: str, rank: int, hosts: Sequence[str]) -> str:
    """Return an executor's error with the hosts of the ranks that it names."""
    blamed = {int(digits) for digits in re.findall(r"rank (\d+)", message)} - {rank}
    named = [f"rank {peer} is host '{hosts[peer]}'" for peer in sorted(blamed) if peer < len(hosts)]
    text = f"measuring stopped at rank {rank} on host '{hosts[rank]}': {message}"
    return f"{text} ({', '.join(named)})" if named else text


def _direct(collective: Collective, ranks: int) -> Program:
    """Return a broadcast from rank 0, or a gather to it, by direct messages."""
    if collective is Collective.BROADCAST:
        transfers = [Transfer(0, peer, 0, 0) for peer in range(1, ranks)]
    else:
        transfers = [Transfer(peer, 0, peer, peer) for peer in range(1, ranks)]
    return lower(Schedule.of(Demand(collective=collective, ranks=ranks), transfers))


def _barrier(ranks: int, members: Sequence[int]) -> Program:
    """Return a barrier: a sum over `members` in one slot, complete after all have sent."""
    first, *others = members
    demand = Demand.custom(
        ranks=ranks,
        slots=1,
        before=[(member, 0, 0, (member,)) for member in members],
        after=[(member, 0, 0, tuple(members)) for member in members],
    )
    arrive = [Transfer(member, first, 0, 0, reduce=True) for member in others]
    release = [Transfer(first, member, 0, 0) for member in others]
    return lower(Schedule.of(demand, [*arrive, *release]))


def _idle_probe(probe: Probe, rank: int) -> Probe:
    """Return a stand-in for a rank without steps in the probe: one flow between two others."""
    src, dst = [peer for peer in range(probe.ranks) if peer != rank][:2]
    flow = Flow(src, dst, ACK_BYTES)
    return replace(probe, chunks=1, flows=(flow,), manner=Manner.ONE_AFTER_ANOTHER)
