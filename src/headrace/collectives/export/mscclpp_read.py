"""MSCCL++ execution plans (JSON), checked and read back as threadblocks.

`read` supports plans in the form that `mscclpp_json` writes: memory channels, each used in one
direction by one threadblock at either end, the protocols of its table, semaphores that are released
once and acquired once. Plans in another form are refused with an error that names the operation. It
shares no code with the writer.

`barriers` checks for a nop wherever threads have to wait for others. Checked besides: references
are valid, channels pair up, accesses are within buffers, each signal has its wait, and the limits
of runtimes (`runtimes`).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headrace import fields
from headrace.collectives.errors import MscclppError, ProgramError
from headrace.collectives.export.algorithm import (
    Algorithm,
    Buffer,
    Finding,
    Gpu,
    Kind,
    Location,
    Threadblock,
)
from headrace.collectives.export.barriers import unordered
from headrace.collectives.export.buffers import Layout
from headrace.collectives.export.mscclpp_ops import (
    OPERATIONS,
    PATTERNS,
    Half,
    MscclppOp,
    ends_of,
    positions,
    with_waits,
)
from headrace.collectives.export.pause import collection_paused
from headrace.collectives.export.prove import Verdict, demand_of, examine
from headrace.collectives.export.runtimes import JSON, Extreme, largest, refusals
from headrace.files import load_json, read_bytes

MAX_FILE_BYTES = 256 << 20

_BUFFERS: Mapping[str, Buffer] = {"i": "i", "o": "o", "s": "s"}


def verify_file(path: str | Path) -> Verdict:
    """Prove or refute the collective that a file claims to be; raises MscclppError."""
    return verify_text(read_bytes(path, MscclppError, MAX_FILE_BYTES), str(path))


@collection_paused()
def verify_text(text: str | bytes, source: str = "MSCCL++ plan") -> Verdict:
    """Prove or refute the collective that a plan claims to be; raises MscclppError."""
    algorithm, findings = read(text, source)
    return examine(algorithm, findings, msccl=False)


def read(text: str | bytes, source: str = "MSCCL++ plan") -> tuple[Algorithm, list[Finding]]:
    """Return the threadblocks of a plan, and the rules of the executor that it breaks.

    Raises
    ------
    MscclppError : naming GPU, threadblock and operation, for what is not a plan or not supported.
    """
    if len(text) > MAX_FILE_BYTES:
        raise MscclppError(f"{source}: has {len(text)} bytes, needs at most {MAX_FILE_BYTES}")
    try:
        plan = load_json(text)
    except (ValueError, RecursionError) as error:
        raise MscclppError(f"{source}: not JSON: {error}") from error
    try:
        return _Reader(source).plan(fields.table(plan))
    except KeyError as error:
        raise MscclppError(f"{source}: field {error} is missing") from error
    except TypeError as error:
        raise MscclppError(f"{source}: {error}") from error


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.findings: list[Finding] = []
        self.where = source
        self.gpus = 0
        self.extremes: list[Extreme] = []

    def plan(self, plan: Mapping[str, Any]) -> tuple[Algorithm, list[Finding]]:
        gpus = [fields.table(gpu) for gpu in fields.items(plan["gpus"])]
        self.gpus = len(gpus)
        peers = [self._peers(number, gpu) for number, gpu in enumerate(gpus)]
        partner = self._partners([[peer for peer, _ in of] for of in peers])
        halves = [self._gpu(number, gpu, len(peers[number])) for number, gpu in enumerate(gpus)]
        self._join(halves, partner)
        built = [self._build(n, gpu, halves[n], peers[n]) for n, gpu in enumerate(gpus)]
        used = [tb.channel for gpu in built for tb in gpu.threadblocks]
        limit = fields.integer(plan["max_message_size"])
        in_place = plan["inplace"]
        if not isinstance(in_place, bool):
            raise TypeError(f"field 'inplace' is {in_place!r}, needs true or false")
        if (protocol := fields.text(plan["protocol"])) != "Simple":
            raise TypeError(f"field 'protocol' is {protocol[:40]!r}, only Simple is read")
        algorithm = Algorithm(
            name=fields.text(plan["name"]),
            protocol=protocol,
            channels=max(used, default=0) + 1,
            chunks_per_loop=_per_loop(fields.text(plan["collective"]), built),
            collective=fields.text(plan["collective"]),
            in_place=in_place,
            out_of_place=not in_place,
            min_bytes=fields.integer(plan["min_message_size"]),
            max_bytes=0 if limit == (1 << 64) - 1 else limit,
            gpus=tuple(built),
        )
        self._barriers(halves, algorithm)
        self.findings += refusals(self.extremes, JSON)
        return algorithm, self.findings

    def _fail(self, message: str) -> MscclppError:
        return MscclppError(f"{self.where}: {message}")

    def _index(self, what: str, raw: Any, size: int) -> int:
        """Return an integer of at least 0 and below `size`."""
        number = fields.integer(raw)
        if not 0 <= number < size:
            raise self._fail(f"{what} is {number}, needs 0 to {size - 1}")
        return number

    def _barriers(self, halves: list[list[list[Half]]], algorithm: Algorithm) -> None:
        """Find operations that lack a nop between them."""
        try:
            layout = Layout(demand=demand_of(algorithm), in_place=algorithm.in_place)
        except ProgramError:  # of no known collective: names of locations do not alias
            layout = None
        for gpu, blocks in enumerate(halves):
            memory = _as_named if layout is None else partial(layout.same_memory, gpu)
            for threadblock, steps in enumerate(blocks):
                for hazard in unordered(steps, memory):
                    self.findings.append(Finding("race", str(hazard), gpu, threadblock))

    # ---- channels

    def _peers(self, number: int, gpu: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Return (peer, entry) of each channel; the entries stand for MSCCL's channels."""
        self.where = f"{self.source}: gpu {number}"
        if fields.integer(gpu["id"]) != number:
            raise self._fail(f"id is {gpu['id']}, needs {number}")
        peers: list[tuple[int, int]] = []
        for k, channel in enumerate(fields.items(gpu["channels"])):
            kind = fields.table(channel)["channel_type"]
            if kind != "memory":
                raise self._fail(f"channel_type is {str(kind)[:40]!r}, only memory is read")
            peers += [(peer, k) for peer in _integers(channel["connected_to"])]
        return peers

    def _partners(self, peers: list[list[int]]) -> dict[tuple[int, int], tuple[int, int]]:
        """Pair the k-th channel from a to b with the k-th from b to a."""
        ends: dict[tuple[int, int], list[int]] = {}
        for gpu, of in enumerate(peers):
            for number, peer in enumerate(of):
                if not 0 <= peer < len(peers) or peer == gpu:
                    self.where = f"{self.source}: gpu {gpu}"
                    raise self._fail(f"channel {number} is connected to {peer}, needs another GPU")
                ends.setdefault((gpu, peer), []).append(number)
        partner: dict[tuple[int, int], tuple[int, int]] = {}
        for (a, b), numbers in ends.items():
            others = ends.get((b, a), [])
            if len(others) != len(numbers):
                self.where = f"{self.source}: gpu {a}"
                raise self._fail(
                    f"has {len(numbers)} channels to gpu {b}, which has {len(others)} back; "
                    "needs as many"
                )
            for x, y in zip(numbers, others, strict=True):
                partner[a, x] = b, y
        return partner

    # ---- operations

    def _gpu(self, number: int, gpu: Mapping[str, Any], channels: int) -> list[list[Half]]:
        remote: list[tuple[int, Buffer]] = []
        for entry in fields.items(gpu["remote_buffers"]):
            self.where = f"{self.source}: gpu {number}"
            rank = self._index("rank of a remote buffer", fields.table(entry)["rank"], self.gpus)
            remote.append((rank, self._buffer(entry["type"])))
        semaphores = fields.items(gpu["semaphores"])
        for k, semaphore in enumerate(semaphores):
            if fields.integer(fields.table(semaphore)["init_value"]) != 0:
                self.where = f"{self.source}: gpu {number}"
                raise self._fail(f"semaphore {k} begins at {semaphore['init_value']}, needs 0")
        halves: list[list[Half]] = []
        for k, entry in enumerate(fields.items(gpu["threadblocks"])):
            self.where = f"{self.source}: gpu {number}, threadblock {k}"
            block = fields.table(entry)
            if fields.integer(block["id"]) != k:
                raise self._fail(f"id is {block['id']}, needs {k}")
            ids = self._named(block["channels"], "channel_ids", channels)
            refs = self._named(
                block.get("remote_buffer_refs", []), "remote_buffer_ids", len(remote)
            )
            entries = fields.items(block["ops"])
            ops = self._operations(entries, ids, [remote[ref] for ref in refs], len(semaphores))
            named = max((len(op.semaphores) for op in ops), default=0)
            for limit, value, text in (
                ("steps", len(entries), "has {} operations"),
                ("channels", len(ids), "has {} channels"),
                ("buffers", len(refs), "has {} remote buffers"),
                ("semaphores", named, "names {} semaphores in one operation"),
            ):
                extreme = Extreme(limit, value, text.format(value), number, k)
                self.extremes = largest([*self.extremes, extreme])
            halves.append(self._steps(ops))
        self._check_semaphores(number, halves, len(semaphores))
        return halves

    def _named(self, entries: Any, name: str, size: int) -> list[int]:
        """Return the threadblock's own numbers of channels or remote buffers, below `size`."""
        return [
            self._index(name, number, size)
            for entry in fields.items(entries)
            for number in fields.items(fields.table(entry)[name])
        ]

    def _operations(
        self, entries: list[Any], ids: list[int], refs: list[tuple[int, Buffer]], semaphores: int
    ) -> list[MscclppOp]:
        ops: list[MscclppOp] = []
        here, phase = self.where, 0
        for k, entry in enumerate(entries):
            self.where = f"{here}, op {k}"
            table = fields.table(entry)
            if table["name"] == "nop":
                phase += 1
                continue
            op = self._operation(table, ids, refs, semaphores)
            op.number, op.phase = k, phase
            ops.append(op)
        self.where = here
        return ops

    def _operation(
        self,
        entry: Mapping[str, Any],
        ids: list[int],
        refs: list[tuple[int, Buffer]],
        semaphores: int,
    ) -> MscclppOp:
        op = MscclppOp(name=fields.text(entry["name"]))
        if op.name not in OPERATIONS:
            raise self._fail(
                f"name is {op.name[:40]!r}, only {', '.join(sorted(OPERATIONS))} are read"
            )
        numbers = _integers(entry.get("channel_ids", []))
        if numbers:
            if len(numbers) != 1 or not 0 <= numbers[0] < len(ids):
                raise self._fail(f"channel_ids is {numbers[:8]}, needs one of 0 to {len(ids) - 1}")
            op.channel = ids[numbers[0]]
        elif op.name in ("signal", "wait", "put"):
            raise self._fail(f"{op.name} names no channel")
        op.src = [self._locate(op, buff, refs) for buff in fields.items(entry.get("src_buff", []))]
        op.dst = [self._locate(op, buff, refs) for buff in fields.items(entry.get("dst_buff", []))]
        form = OPERATIONS[op.name]
        shape = "".join("r" if rank >= 0 else "l" for rank, _ in op.src)
        shape += ">" + "".join("r" if rank >= 0 else "l" for rank, _ in op.dst)
        if shape != form:
            raise self._fail(f"{op.name} has buffers {shape}, needs {form} (l local, r remote)")
        op.semaphores = [
            self._index("semaphore_ids", number, semaphores)
            for number in fields.items(entry.get("semaphore_ids", []))
        ]
        return op

    def _locate(
        self, op: MscclppOp, entry: Any, refs: list[tuple[int, Buffer]]
    ) -> tuple[int, Location]:
        buff = fields.table(entry)
        index, size = fields.integer(buff["index"]), fields.integer(buff["size"])
        if op.size and size != op.size:
            raise self._fail(f"buffers of {op.size} and {size} chunks, needs equal sizes")
        op.size = size
        if "buffer_id" not in buff:
            return -1, Location(self._buffer(buff["type"]), index)
        rank, buffer = refs[self._index("buffer_id", buff["buffer_id"], len(refs))]
        return rank, Location(buffer, index)

    def _buffer(self, text: Any) -> Buffer:
        if text not in tuple(_BUFFERS):
            raise self._fail(f"type is {str(text)[:40]!r}, needs i, o or s")
        return _BUFFERS[text]

    # ---- steps

    def _steps(self, ops: list[MscclppOp]) -> list[Half]:
        """Parse the operations by the protocols of the table in `mscclpp_json`."""
        halves: list[Half] = []
        here, at = self.where, 0
        while at < len(ops):
            acquired: list[int] = []
            begin = at
            while at < len(ops) and ops[at].name == "sem_acquire":
                acquired += ops[at].semaphores
                at += 1
            self.where = f"{here}, operation {at} without nops"
            half, used = self._half(ops, at)
            at += used
            half.acquired = acquired
            while at < len(ops) and ops[at].name == "sem_release":
                half.released += ops[at].semaphores
                at += 1
            half.ops = ops[begin:at]
            halves.append(half)
        self.where = here
        return halves

    def _half(self, ops: list[MscclppOp], at: int) -> tuple[Half, int]:
        for pattern in PATTERNS:
            length = len(pattern.names)
            if (half := pattern.half(ops[at : at + length])) is not None:
                return half, length
        names = [op.name for op in ops[at : at + 5]]
        first = ops[at] if at < len(ops) else MscclppOp(name="the end")
        raise self._fail(
            f"{first.name} begins no known sequence ({', '.join(names)}); needs the "
            "protocols that headrace writes"
        )

    def _check_semaphores(self, gpu: int, halves: list[list[Half]], count: int) -> None:
        self.where = f"{self.source}: gpu {gpu}"
        for what in ("acquired", "released"):
            numbers = [n for block in halves for half in block for n in getattr(half, what)]
            if sorted(numbers) != list(range(count)):
                raise self._fail(f"semaphores are not {what} once each, or some never")

    # ---- matching

    def _join(
        self,
        halves: list[list[list[Half]]],
        partner: dict[tuple[int, int], tuple[int, int]],
    ) -> None:
        """Decide which signal-and-waits send and which receive, and set both ends' locations."""
        sends, receives, open_ = ends_of(halves)
        for (gpu, number), ends in sorted(open_.items()):
            partner_channel = partner[gpu, number]
            self.where = f"{self.source}: gpu {gpu}, channel {number}"
            puts, pulls = sends.get(partner_channel, []), receives.get(partner_channel, [])
            if len(puts) + len(pulls) != len(ends) or (puts and pulls):
                raise self._fail(
                    f"{len(ends)} times signal and wait, but {len(puts)} puts and {len(pulls)} "
                    f"reads at gpu {partner_channel[0]}; needs as many of one of them"
                )
            for half, there in zip(ends, puts or pulls, strict=True):
                half.count = there.count
                if puts:
                    half.kind, half.recv, half.send = Kind.RECV, number, -1
                    half.dst = there.lands
                else:
                    half.kind, half.recv, half.send = Kind.SEND, -1, number
                    half.src = there.remote
        for table in (sends, receives):
            for (gpu, number), ends in sorted(table.items()):
                if len(open_.get(partner[gpu, number], [])) != len(ends):
                    self.where = f"{self.source}: gpu {gpu}, channel {number}"
                    raise self._fail("its signals and waits do not match those of the other end")

    # ---- threadblocks

    def _build(
        self,
        number: int,
        gpu: Mapping[str, Any],
        halves: list[list[Half]],
        peers: list[tuple[int, int]],
    ) -> Gpu:
        self.where = f"{self.source}: gpu {number}"
        at = positions(halves)
        local = 0
        threadblocks: list[Threadblock] = []
        for k, block in enumerate(halves):
            sends = {half.send for half in block if half.send >= 0}
            receives = {half.recv for half in block if half.recv >= 0}
            entries = {peers[channel][1] for channel in sends | receives}
            if len(sends) > 1 or len(receives) > 1 or len(entries) > 1:
                raise self._fail(
                    f"threadblock {k} sends on {len(sends)} channels and receives on "
                    f"{len(receives)}; needs one each at most, of one entry"
                )
            local += not entries
            threadblocks.append(
                Threadblock(
                    id=k,
                    send=peers[min(sends)][0] if sends else -1,
                    recv=peers[min(receives)][0] if receives else -1,
                    channel=min(entries) if entries else local - 1,
                    steps=with_waits(block, at),
                )
            )
        return Gpu(
            id=number,
            input_chunks=fields.integer(gpu["input_chunks"]),
            output_chunks=fields.integer(gpu["output_chunks"]),
            scratch_chunks=fields.integer(gpu["scratch_chunks"]),
            threadblocks=tuple(threadblocks),
        )


def _integers(raw: Any) -> list[int]:
    return [fields.integer(number) for number in fields.items(raw)]


def _as_named(location: Location) -> Location:
    return location


def _per_loop(collective: str, gpus: list[Gpu]) -> int:
    """Return MSCCL's chunks per loop, which follow from the buffers alone."""
    if not gpus:
        return 0
    by_output = ("allgather", "scatter")
    return gpus[0].output_chunks if collective in by_output else gpus[0].input_chunks
