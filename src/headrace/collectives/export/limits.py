"""Limits of MSCCL's executor, and the rules of its parser that a value can break.

Where runtimes differ, these are the largest limits of any; `runtimes` has the others.
Nodes are counted as the executor does, which keeps the threadblocks and steps of one GPU only.
"""

from collections import Counter
from collections.abc import Iterator

from headrace.collectives.export.algorithm import (
    READS_SRC,
    RECEIVING,
    SENDING,
    WRITES_DST,
    Algorithm,
    BlockStep,
    Finding,
    Gpu,
    Kind,
    Location,
    Threadblock,
)

MAX_STEPS = 256
"""Steps a threadblock."""
MAX_COUNT = 72
"""A step moves fewer chunks than this."""
PEERS_PER_CHANNEL = 32
"""Threadblocks a channel and direction."""
CHANNELS = 32
THREADBLOCKS = 216
"""Threadblocks a GPU that every runtime accepts."""
MAX_THREADBLOCKS = 1024
"""Threadblocks a GPU that some runtime accepts."""
MAX_NODES = 4096
"""Elements of the file, counting the content of one GPU only."""
MAX_TEXT = 255
"""Characters of a name or value."""


def check_limits(algorithm: Algorithm) -> list[Finding]:
    """Return the limits and format rules that `algorithm` breaks."""
    found = list(_of_algorithm(algorithm))
    for gpu in algorithm.gpus:
        found += _of_gpu(algorithm, gpu)
        for threadblock in gpu.threadblocks:
            found += _of_threadblock(algorithm, gpu, threadblock)
            for number, step in enumerate(threadblock.steps):
                for rule, message in _of_step(gpu, threadblock, step):
                    found.append(_at(gpu, threadblock, number, rule, message))
    return found


def _at(gpu: Gpu, threadblock: Threadblock, step: int, rule: str, message: str) -> Finding:
    return Finding(rule=rule, message=message, gpu=gpu.id, threadblock=threadblock.id, step=step)


def _of_algorithm(algorithm: Algorithm) -> Iterator[Finding]:
    if len(algorithm.name) > MAX_TEXT:
        yield Finding(
            rule="limit",
            message=f"name has {len(algorithm.name)} characters, needs at most {MAX_TEXT}",
        )
    if not 1 <= algorithm.channels <= CHANNELS:
        yield Finding(
            rule="limit", message=f"nchannels is {algorithm.channels}, needs 1 to {CHANNELS}"
        )
    ids = [gpu.id for gpu in algorithm.gpus]
    if ids != list(range(len(ids))):
        yield Finding(
            rule="format", message=f"gpu ids are {_shown(ids)}, need 0 to {len(ids) - 1} in order"
        )
    if not (algorithm.in_place or algorithm.out_of_place):
        yield Finding(
            rule="format",
            message="inplace and outofplace are both 0: no call selects it; one needs to be 1",
        )
    if algorithm.min_bytes < 0 or 0 < algorithm.max_bytes < algorithm.min_bytes:
        yield Finding(
            rule="format",
            message=f"is for {algorithm.min_bytes} to {algorithm.max_bytes} bytes, needs minBytes "
            "of at least 0 and a maxBytes not below it (or 0)",
        )


def _of_gpu(algorithm: Algorithm, gpu: Gpu) -> Iterator[Finding]:
    def finding(rule: str, message: str) -> Finding:
        return Finding(rule=rule, message=message, gpu=gpu.id)

    ids = sorted(tb.id for tb in gpu.threadblocks)
    if ids != list(range(len(ids))):
        yield finding(
            "format", f"threadblock ids are {_shown(ids)}, need 0 to {len(ids) - 1}, each once"
        )
    if len(ids) > MAX_THREADBLOCKS:
        yield finding("limit", f"has {len(ids)} threadblocks, needs at most {MAX_THREADBLOCKS}")
    nodes = 1 + len(algorithm.gpus) + sum(1 + len(tb.steps) for tb in gpu.threadblocks)
    if nodes > MAX_NODES:
        yield finding("limit", f"makes {nodes} elements, needs at most {MAX_NODES}")
    if min(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) < 0:
        yield finding("format", "has a negative number of chunks, needs 0 or more")
    for what, peers in (
        ("send", Counter(tb.channel for tb in gpu.threadblocks if tb.send >= 0)),
        ("receive", Counter(tb.channel for tb in gpu.threadblocks if tb.recv >= 0)),
    ):
        for channel, count in sorted(peers.items()):
            if count > PEERS_PER_CHANNEL:
                yield finding(
                    "limit",
                    f"{count} threadblocks {what} on channel {channel}, "
                    f"needs at most {PEERS_PER_CHANNEL}",
                )


def _of_threadblock(algorithm: Algorithm, gpu: Gpu, tb: Threadblock) -> Iterator[Finding]:
    gpus = len(algorithm.gpus)
    for name, peer in (("send", tb.send), ("recv", tb.recv)):
        if peer == gpu.id:
            yield _at(gpu, tb, -1, "format", f"{name} is {peer}, the GPU itself; needs another")
        elif not -1 <= peer < gpus:
            yield _at(gpu, tb, -1, "format", f"{name} is {peer}, needs -1 to {gpus - 1}")
    if not 0 <= tb.channel < min(max(algorithm.channels, 1), CHANNELS):
        yield _at(
            gpu,
            tb,
            -1,
            "limit",
            f"chan is {tb.channel}, needs 0 to {min(algorithm.channels, CHANNELS) - 1} "
            f"(nchannels is {algorithm.channels})",
        )
    if len(tb.steps) > MAX_STEPS:
        yield _at(
            gpu, tb, MAX_STEPS, "limit", f"has {len(tb.steps)} steps, needs at most {MAX_STEPS}"
        )
    yield from _nop_rules(gpu, tb)
    yield from _fusion_rules(gpu, tb)


def _nop_rules(gpu: Gpu, tb: Threadblock) -> Iterator[Finding]:
    """Check the nops: of several dependencies only the last is on the instruction itself."""
    chained = False
    for number, step in enumerate(tb.steps):
        if step.kind is Kind.NOP:
            if step.depends is None:
                yield _at(
                    gpu,
                    tb,
                    number,
                    "format",
                    "nop without a dependency: the executor does not count it, and later "
                    "dependencies on this threadblock mean other steps; drop it",
                )
            chained = chained or step.depends is not None
            continue
        if chained and step.depends is None:
            yield _at(
                gpu,
                tb,
                number,
                "format",
                f"{step.kind} follows nops with dependencies and has none; "
                "needs the last of them itself",
            )
        chained = False
    if chained:
        yield Finding(
            rule="format",
            fatal=False,
            message="ends with nops, whose dependencies the executor drops",
            gpu=gpu.id,
            threadblock=tb.id,
            step=len(tb.steps) - 1,
        )


def _fusion_rules(gpu: Gpu, tb: Threadblock) -> Iterator[Finding]:
    """Check consecutive ``re`` of one location: they run as one, with the last one's count."""
    for number, (a, b) in enumerate(zip(tb.steps, tb.steps[1:], strict=False), start=1):
        if (
            a.kind is b.kind is Kind.REDUCE
            and a.dst == b.dst
            and a.src.buffer == b.src.buffer
            and b.depends is None
            and not a.flagged
            and a.count != b.count
        ):
            yield _at(
                gpu,
                tb,
                number,
                "format",
                f"re of {b.count} chunks follows re of {a.count} into the same location: the "
                "executor fuses them with one count; needs equal counts or hasdep=1 before",
            )


def _of_step(gpu: Gpu, tb: Threadblock, step: BlockStep) -> Iterator[tuple[str, str]]:
    kind = step.kind
    if kind is Kind.NOP:
        return
    if not 1 <= step.count < MAX_COUNT:
        # a step of less than one chunk cannot be executed
        rule = "limit" if step.count >= 1 else "format"
        yield rule, f"cnt is {step.count}, needs 1 to {MAX_COUNT - 1}"
    if kind in SENDING and tb.send < 0:
        yield "format", f"{kind} in a threadblock without a send peer; needs one"
    if kind in RECEIVING and tb.recv < 0:
        yield "format", f"{kind} in a threadblock without a recv peer; needs one"
    for name, location, used in (
        ("src", step.src, kind in READS_SRC),
        ("dst", step.dst, kind in WRITES_DST),
    ):
        if used:
            yield from _in_bounds(gpu, name, location, step.count)


def _in_bounds(gpu: Gpu, name: str, location: Location, count: int) -> Iterator[tuple[str, str]]:
    sizes = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}
    size = sizes[location.buffer]
    if location.offset < 0 or location.offset + count > size:
        yield (
            "format",
            f"{name} covers {location.buffer}[{location.offset}..{location.offset + count - 1}], "
            f"needs offsets within the {size} chunks of that buffer",
        )


def _shown(ids: list[int]) -> str:
    text = ", ".join(map(str, ids[:8]))
    return f"{text}, ..." if len(ids) > 8 else text
