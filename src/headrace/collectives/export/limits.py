"""Limits of MSCCL's executor, and the rules of its parser that a value can break.

Where runtimes differ, these are the largest limits of any; `runtimes` has the others.
Nodes are counted as the executor does, which keeps the threadblocks and steps of one GPU only.
"""

from collections import Counter
from collections.abc import Iterator

from headrace.collectives.export.algorithm import (
    Algorithm,
    BlockStep,
    Finding,
    Gpu,
    Kind,
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

_Problem = tuple[str, str]
"""(rule, message)."""


def check_limits(algorithm: Algorithm) -> list[Finding]:
    """Return the limits and format rules that `algorithm` breaks."""
    findings = [Finding(*problem) for problem in _of_algorithm(algorithm)]
    for gpu in algorithm.gpus:
        findings += [Finding(*problem, gpu.id) for problem in _of_gpu(algorithm, gpu)]
        for tb in gpu.threadblocks:
            findings += [
                Finding(*problem, gpu.id, tb.id) for problem in _of_peers(algorithm, gpu, tb)
            ]
            if len(tb.steps) > MAX_STEPS:
                message = f"has {len(tb.steps)} steps, needs at most {MAX_STEPS}"
                findings.append(Finding("limit", message, gpu.id, tb.id, MAX_STEPS))
            findings += _nop_rules(gpu, tb)
            for number, step in enumerate(tb.steps):
                problems = (*_fusion_rules(tb, number), *_of_step(gpu, tb, step))
                findings += [Finding(*problem, gpu.id, tb.id, number) for problem in problems]
    return findings


def _of_algorithm(algorithm: Algorithm) -> Iterator[_Problem]:
    if len(algorithm.name) > MAX_TEXT:
        yield "limit", f"name has {len(algorithm.name)} characters, needs at most {MAX_TEXT}"
    if not 1 <= algorithm.channels <= CHANNELS:
        yield "limit", f"nchannels is {algorithm.channels}, needs 1 to {CHANNELS}"
    ids = [gpu.id for gpu in algorithm.gpus]
    if ids != list(range(len(ids))):
        yield "format", f"gpu ids are {_shown(ids)}, need 0 to {len(ids) - 1} in order"
    if not (algorithm.in_place or algorithm.out_of_place):
        text = "inplace and outofplace are both 0: no call selects it; one needs to be 1"
        yield "format", text
    if algorithm.min_bytes < 0 or 0 < algorithm.max_bytes < algorithm.min_bytes:
        text = f"is for {algorithm.min_bytes} to {algorithm.max_bytes} bytes"
        yield "format", f"{text}, needs minBytes of at least 0 and a maxBytes not below it (or 0)"


def _of_gpu(algorithm: Algorithm, gpu: Gpu) -> Iterator[_Problem]:
    ids = sorted(tb.id for tb in gpu.threadblocks)
    if ids != list(range(len(ids))):
        yield "format", f"threadblock ids are {_shown(ids)}, need 0 to {len(ids) - 1}, each once"
    if len(ids) > MAX_THREADBLOCKS:
        yield "limit", f"has {len(ids)} threadblocks, needs at most {MAX_THREADBLOCKS}"
    nodes = 1 + len(algorithm.gpus) + sum(1 + len(tb.steps) for tb in gpu.threadblocks)
    if nodes > MAX_NODES:
        yield "limit", f"makes {nodes} elements, needs at most {MAX_NODES}"
    if min(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) < 0:
        yield "format", "has a negative number of chunks, needs 0 or more"
    for what, peers in (
        ("send", Counter(tb.channel for tb in gpu.threadblocks if tb.send >= 0)),
        ("receive", Counter(tb.channel for tb in gpu.threadblocks if tb.recv >= 0)),
    ):
        for channel, count in sorted(peers.items()):
            if count > PEERS_PER_CHANNEL:
                text = f"{count} threadblocks {what} on channel {channel}"
                yield "limit", f"{text}, needs at most {PEERS_PER_CHANNEL}"


def _of_peers(algorithm: Algorithm, gpu: Gpu, tb: Threadblock) -> Iterator[_Problem]:
    gpus = len(algorithm.gpus)
    for name, peer in (("send", tb.send), ("recv", tb.recv)):
        if peer == gpu.id:
            yield "format", f"{name} is {peer}, the GPU itself; needs another"
        elif not -1 <= peer < gpus:
            yield "format", f"{name} is {peer}, needs -1 to {gpus - 1}"
    if not 0 <= tb.channel < min(max(algorithm.channels, 1), CHANNELS):
        most = min(algorithm.channels, CHANNELS) - 1
        text = f"chan is {tb.channel}, needs 0 to {most} (nchannels is {algorithm.channels})"
        yield "limit", text


def _nop_rules(gpu: Gpu, tb: Threadblock) -> Iterator[Finding]:
    """Check the nops: of several dependencies only the last is on the instruction itself."""
    chained = False
    for number, step in enumerate(tb.steps):
        text = ""
        if step.kind is Kind.NOP:
            chained = chained or step.depends is not None
            if step.depends is None:
                text = "nop without a dependency: the executor does not count it, and later "
                text += "dependencies on this threadblock mean other steps; drop it"
        else:
            if chained and step.depends is None:
                text = f"{step.kind} follows nops with dependencies and has none; "
                text += "needs the last of them itself"
            chained = False
        if text:
            yield Finding("format", text, gpu.id, tb.id, number)
    if chained:
        text = "ends with nops, whose dependencies the executor drops"
        yield Finding("format", text, gpu.id, tb.id, len(tb.steps) - 1, fatal=False)


def _fusion_rules(tb: Threadblock, number: int) -> Iterator[_Problem]:
    """Check consecutive ``re`` of one location: they run as one, with the last one's count."""
    a, b = tb.steps[max(0, number - 1)], tb.steps[number]
    if (
        a.kind is b.kind is Kind.REDUCE
        and a.dst == b.dst
        and a.src.buffer == b.src.buffer
        and b.depends is None
        and not a.flagged
        and a.count != b.count
    ):
        text = f"re of {b.count} chunks follows re of {a.count} into the same location: the "
        text += "executor fuses them with one count; needs equal counts or hasdep=1 before"
        yield "format", text


def _of_step(gpu: Gpu, tb: Threadblock, step: BlockStep) -> Iterator[_Problem]:
    kind, count = step.kind, step.count
    if kind is Kind.NOP:
        return
    if not 1 <= count < MAX_COUNT:
        # a step of less than one chunk cannot be executed
        rule = "limit" if count >= 1 else "format"
        yield rule, f"cnt is {count}, needs 1 to {MAX_COUNT - 1}"
    if kind.sends and tb.send < 0:
        yield "format", f"{kind} in a threadblock without a send peer; needs one"
    if kind.receives and tb.recv < 0:
        yield "format", f"{kind} in a threadblock without a recv peer; needs one"
    sizes = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}
    for name, (buffer, offset), used in (
        ("src", step.src, kind.reads),
        ("dst", step.dst, kind.writes),
    ):
        size = sizes[buffer]
        if used and (offset < 0 or offset + count > size):
            text = f"{name} covers {buffer}[{offset}..{offset + count - 1}]"
            yield "format", f"{text}, needs offsets within the {size} chunks of that buffer"


def _shown(ids: list[int]) -> str:
    text = ", ".join(map(str, ids[:8]))
    return f"{text}, ..." if len(ids) > 8 else text
