"""MSCCL++ execution plans (JSON), written from threadblocks.

MSCCL++ has no sends and receives, but memory of peers and signals. A message becomes, on a memory
channel of its own direction:

=================  =====================================  ====================================
receive            at the receiver                        at the sender
=================  =====================================  ====================================
into a buffer      signal (it may be overwritten), wait   wait, put, signal
combined           wait, rre (read remote, reduce),       signal (it may be read), wait (it
                   signal (it has been read)              may be overwritten)
=================  =====================================  ====================================

So each message is a rendezvous, as for threadblocks: nothing is buffered. A fused
receive-reduce-send whose receiver only stores is one rres. Waits for other threadblocks of the
GPU are semaphores, one for each wait, that begin and end at 0. Every thread of the block runs
every operation, and only a nop is a barrier among threads (`_with_barriers`).

Each entry of a GPU's channels stands for one of MSCCL's; the k-th channel from one GPU to another
is paired with the k-th in reverse; operations name channels and remote buffers by their number in
the threadblock.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from headrace.collectives.errors import ProgramError
from headrace.collectives.export.algorithm import (
    Algorithm,
    At,
    BlockStep,
    Finding,
    Gpu,
    Kind,
    Location,
    Threadblock,
)
from headrace.collectives.export.connections import Connections
from headrace.collectives.export.emission import StreamEvent
from headrace.collectives.export.mscclpp_read import verify_text
from headrace.collectives.export.pause import collection_paused
from headrace.collectives.export.prove import require_none
from headrace.collectives.export.runtimes import JSON, Extreme, Runtime, refused, runtime_of
from headrace.collectives.export.threadblocks import Lowering, Target
from headrace.collectives.program import Program
from headrace.errors import VerificationError

THREADS_PER_BLOCK = 1024
ALIGNMENT = 16
NO_LIMIT = (1 << 64) - 1
MAX_SEMAPHORES = 16
"""Semaphores of one operation (the executor's MAX_DEVICE_SEMAPHORES)."""

Operation = dict[str, Any]
Connection = tuple[int, int, int]
"""(src, dst, channel)."""


@collection_paused()
def export(program: Program, target: Target | None = None) -> str:
    """Return `program` as an MSCCL++ execution plan, proven from the text alone.

    Raises
    ------
    ProgramError : if the program cannot be lowered, another protocol than Simple is wanted, or the
        runtime does not read JSON.
    VerificationError : if the program is wrong, or the plan breaks a rule of the runtime.
    """
    target = target or Target()
    if target.protocol != "Simple":
        raise ProgramError(
            f"protocol is {target.protocol}: packets are not written; needs Simple for mscclpp-json"
        )
    if target.buffered:
        raise ProgramError("MSCCL++ connections hold nothing: mscclpp-json needs no --buffered")
    runtime = runtime_of(target.runtime, JSON)
    text = fitted_text(program, target, runtime)
    findings = verify_text(text).findings
    fatal = [replace(f, fatal=True) for f in findings if f.fatal or f.rule == "limit"]
    require_none(fatal, f"MSCCL++ plan of {program.demand.collective} for {runtime.name}")
    return text


def fitted_text(program: Program, target: Target, runtime: Runtime) -> str:
    """Return `program` as a plan, its threadblocks split for `runtime` if possible.

    Raises
    ------
    ProgramError, VerificationError : see `Lowering.of`.
    """
    return _text(_fitted(program, target, runtime))


def beyond(program: Program, runtime: Runtime) -> list[Finding]:
    """Return the operations of the longest threadblock, once split, if `runtime` takes fewer."""
    longest = _longest(_fitted(program, Target(), runtime))
    return refused([] if longest is None else [longest], runtime)


def _fitted(program: Program, target: Target, runtime: Runtime) -> Operation:
    lowering = Lowering.of(program, target, store_all=True)
    plan = _plan(lowering.algorithm())
    if (longest := _longest(plan)) is not None and longest.value > runtime.steps:
        plan = _plan(lowering.algorithm(_weight, runtime.steps - _HANDOVER))
    return plan


def _longest(plan: Operation) -> Extreme | None:
    """Return the most operations of a threadblock; None if there is no threadblock."""
    extremes = (
        Extreme("steps", ops := len(block["ops"]), f"has {ops} operations", gpu["id"], block["id"])
        for gpu in plan["gpus"]
        for block in gpu["threadblocks"]
    )
    return max(extremes, key=lambda extreme: extreme.value, default=None)


_HANDOVER = 4
"""Most operations that a part of a threadblock adds at its ends: semaphores and nops."""

_WEIGHTS = {
    Kind.SEND: 5,
    Kind.RECV: 2,
    Kind.RECV_COPY_SEND: 7,
    Kind.RECV_REDUCE_COPY: 5,
    Kind.RECV_REDUCE_SEND: 7,
    Kind.RECV_REDUCE_COPY_SEND: 7,
    Kind.COPY: 2,
    Kind.REDUCE: 2,
}
"""Operations with nops, of the longest form of each step."""
_PUT, _PULLED = 5, 2


def _weight(event: StreamEvent, following: StreamEvent | None, acquired: int, released: int) -> int:
    """Return the most operations of a step; semaphores come with a nop."""
    semaphores = sum(count > 0 for count in (acquired, released))
    semaphores += sum(-(-count // MAX_SEMAPHORES) for count in (acquired, released))
    pulled = event.kind in (Kind.SEND, Kind.RECV_COPY_SEND) and (
        following is not None and following.kind.reduces
    )
    return _WEIGHTS[event.kind] + semaphores - (_PUT - _PULLED if pulled else 0)


def write(algorithm: Algorithm) -> str:
    """Return `algorithm` as an execution plan."""
    return _text(_plan(algorithm))


def _text(plan: Operation) -> str:
    return _indented(plan, "\n") + "\n"


def _indented(value: Any, line: str) -> str:
    """Return ``json.dumps(value, indent=1)``, which takes several times as long.

    Parameters
    ----------
    line : the line break, with the indentation of `value`.
    """
    inner = f"{line} "
    if isinstance(value, dict) and value:
        members = cast(Operation, value).items()
        parts = [f'"{name}": {_indented(member, inner)}' for name, member in members]
        return f"{{{inner}{f',{inner}'.join(parts)}{line}}}"
    if isinstance(value, list) and value:
        parts = [_indented(member, inner) for member in cast(list[Any], value)]
        return f"[{inner}{f',{inner}'.join(parts)}{line}]"
    return str(value) if type(value) is int else json.dumps(value)


def _plan(algorithm: Algorithm) -> Operation:
    connections, findings = Connections.of(algorithm)
    if findings:
        raise VerificationError(f"MSCCL++ plan: {findings[0]}")
    writer = _Writer(connections)
    return {
        "name": algorithm.name,
        "collective": algorithm.collective,
        "protocol": algorithm.protocol,
        "inplace": algorithm.in_place,
        "reuse_resources": False,
        "gpus": [writer.gpu(gpu) for gpu in algorithm.gpus],
        "num_threads_per_block": THREADS_PER_BLOCK,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": algorithm.min_bytes,
        "max_message_size": algorithm.max_bytes or NO_LIMIT,
    }


@dataclass(slots=True)
class _Tables:
    """A GPU's channels and remote buffers, numbered in order of first use, and its semaphores.

    Attributes
    ----------
    acquired, released : by step its semaphores.
    """

    connections: dict[Connection, int]
    remote: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    semaphores: int = 0
    acquired: dict[At, list[int]] = field(default_factory=dict[At, list[int]])
    released: dict[At, list[int]] = field(default_factory=dict[At, list[int]])


class _Writer:
    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.receiver = dict(connections.rendezvous)
        self.sender = {receive: send for send, receive in connections.rendezvous}
        # The k-th channel to a peer is paired with the k-th of the peer: both sort alike.
        self.used = sorted(
            {self._connection(send) for send, _ in connections.rendezvous},
            key=lambda connection: (connection[2], connection[:2]),
        )

    def gpu(self, gpu: Gpu) -> dict[str, Any]:
        """Return one GPU's part of the plan."""
        own = [c for c in self.used if gpu.id in c[:2]]
        tables = _Tables(connections={c: k for k, c in enumerate(own)})
        self._number_waits(gpu, tables)
        blocks = [_Block(self, tables, gpu.id, tb).written() for tb in gpu.threadblocks]
        return {
            "id": gpu.id,
            "input_chunks": gpu.input_chunks,
            "output_chunks": gpu.output_chunks,
            "scratch_chunks": gpu.scratch_chunks,
            "threadblocks": blocks,
            "channels": [
                {"channel_type": "memory", "connected_to": connected}
                for connected in self._connected(gpu.id, own)
            ],
            "remote_buffers": [
                {"rank": rank, "type": buffer, "access_channel_types": ["memory"]}
                for rank, buffer in tables.remote
            ],
            "semaphores": [{"init_value": 0} for _ in range(tables.semaphores)],
        }

    def step(self, at: At) -> BlockStep:
        return self.connections.threadblocks[at[:2]].steps[at[2]]

    def _connected(self, gpu: int, own: list[Connection]) -> list[list[int]]:
        """Return by MSCCL's channel the peers, so that an entry stands for a channel."""
        entries = max((channel for *_, channel in own), default=-1) + 1
        return [
            [dst if src == gpu else src for src, dst, channel in own if channel == entry]
            for entry in range(entries)
        ]

    def _connection(self, send: At) -> Connection:
        tb = self.connections.threadblocks[send[:2]]
        return send[0], tb.send, tb.channel

    def _number_waits(self, gpu: Gpu, tables: _Tables) -> None:
        """Number every wait of one threadblock for another."""
        for tb in sorted(gpu.threadblocks, key=lambda tb: tb.id):
            for number in range(len(tb.steps)):
                at = (gpu.id, tb.id, number)
                for on in self.connections.waits.get(at, ()):
                    tables.acquired.setdefault(at, []).append(tables.semaphores)
                    tables.released.setdefault(on, []).append(tables.semaphores)
                    tables.semaphores += 1


class _Block:
    """One threadblock, with its own numbers for channels and remote buffers."""

    def __init__(self, writer: _Writer, tables: _Tables, gpu: int, tb: Threadblock) -> None:
        self.writer, self.tables, self.gpu, self.tb = writer, tables, gpu, tb
        self.channels: dict[int, int] = {}
        self.buffers: dict[int, int] = {}

    def written(self) -> dict[str, Any]:
        ops: list[Operation] = []
        for number, step in enumerate(self.tb.steps):
            if step.kind is not Kind.NOP:
                at = (self.gpu, self.tb.id, number)
                ops += _semaphores("sem_acquire", self.tables.acquired.get(at, ()))
                ops += self._step(at, step)
                ops += _semaphores("sem_release", self.tables.released.get(at, ()))
        channels = {"channel_type": "memory", "channel_ids": list(self.channels)}
        buffers = {"access_channel_type": "memory", "remote_buffer_ids": list(self.buffers)}
        return {
            "id": self.tb.id,
            "ops": list(_with_barriers(ops)),
            "channels": [channels] if self.channels else [],
            "remote_buffer_refs": [buffers] if self.buffers else [],
        }

    def _step(self, at: At, step: BlockStep) -> Iterator[Operation]:
        kind, tb = step.kind, self.tb
        if kind in (Kind.COPY, Kind.REDUCE):
            yield _local(step)
            return
        came: Connection = (tb.recv, at[0], tb.channel)
        goes: Connection = (at[0], tb.send, tb.channel)
        pulled = kind.sends and self.writer.step(self.writer.receiver[at]).kind.reduces
        # rrs stores nothing; here the result that it forwards replaces its operand
        home = step.dst if kind not in (Kind.SEND, Kind.RECV_REDUCE_SEND) else step.src
        fused = kind.receives and kind.reduces and kind.sends and not pulled
        if kind.receives and not kind.reduces:
            yield self._sync("signal", came)
            yield self._sync("wait", came)
        elif kind.receives:
            yield self._sync("wait", came)
            if fused:
                yield self._sync("wait", goes)
            yield self._read_reduce(at, step, home, send=fused)
            yield self._sync("signal", came)
            if fused:
                yield self._sync("signal", goes)
        if kind.sends and pulled:
            yield self._sync("signal", goes)
            yield self._sync("wait", goes)
        elif kind.sends and not fused:
            yield self._sync("wait", goes)
            yield {
                "name": "put",
                "src_buff": [_own(home, step.count)],
                "dst_buff": [self._stored_at(at)],
                **self._channel(goes),
            }
            yield self._sync("signal", goes)

    def _read_reduce(self, at: At, step: BlockStep, home: Location, *, send: bool) -> Operation:
        sender = self.writer.sender[at]
        sent = self.writer.step(sender)
        plain = sent.kind in (Kind.SEND, Kind.RECV_REDUCE_SEND)
        remote = self._remote(sender[0], sent.src if plain else sent.dst, step.count)
        return {
            "name": "rres" if send else "rre",
            "src_buff": [_own(step.src, step.count), remote],
            "dst_buff": [_own(home, step.count), *([self._stored_at(at)] if send else [])],
            "channel_type": "memory",
            "reduce_op": "sum",
        }

    def _stored_at(self, at: At) -> dict[str, Any]:
        receiver = self.writer.receiver[at]
        step = self.writer.step(receiver)
        return self._remote(receiver[0], step.dst, step.count)

    def _remote(self, rank: int, location: Location, count: int) -> dict[str, Any]:
        remote = self.tables.remote
        number = remote.setdefault((rank, location.buffer), len(remote))
        own = self.buffers.setdefault(number, len(self.buffers))
        return {"buffer_id": own, "index": location.offset, "size": count}

    def _sync(self, name: str, connection: Connection) -> Operation:
        return {"name": name, **self._channel(connection)}

    def _channel(self, connection: Connection) -> dict[str, Any]:
        number = self.tables.connections[connection]
        own = self.channels.setdefault(number, len(self.channels))
        return {"channel_ids": [own], "channel_type": "memory"}


def _local(step: BlockStep) -> Operation:
    src, dst = _own(step.src, step.count), _own(step.dst, step.count)
    if step.kind is Kind.COPY:
        return {"name": "copy", "src_buff": [src], "dst_buff": [dst]}
    return {"name": "re", "src_buff": [dst, src], "dst_buff": [dst], "reduce_op": "sum"}


def _own(location: Location, count: int) -> dict[str, Any]:
    return {"type": location.buffer, "index": location.offset, "size": count}


def _semaphores(name: str, numbers: Sequence[int]) -> Iterator[Operation]:
    for k in range(0, len(numbers), MAX_SEMAPHORES):
        yield {"name": name, "semaphore_ids": list(numbers[k : k + MAX_SEMAPHORES])}


_SYNCHRONISES = frozenset({"signal", "wait", "sem_acquire", "sem_release"})


def _with_barriers(ops: list[Operation]) -> Iterator[Operation]:
    """Insert a nop where threads have to wait for others: around operations that touch data.

    Signals, waits and single semaphores run on one thread, which needs none among them. Of several
    semaphores each thread acquires or releases one: a signal or release after several acquires,
    or by several threads after any wait, is ordered after all of them only by a nop.
    """
    before, blocked, spread = "", False, False
    for op in ops:
        name, several = op["name"], len(op.get("semaphore_ids", ())) > 1
        publishes = name in ("signal", "sem_release")
        apart = not {before, name} <= _SYNCHRONISES or (
            publishes and (spread or (several and blocked))
        )
        if before and apart:
            yield {"name": "nop"}
            blocked = spread = False
        yield op
        before = name
        blocked = blocked or name in ("wait", "sem_acquire")
        spread = spread or (several and name == "sem_acquire")
