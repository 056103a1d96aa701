"""Proof or refutation of an algorithm, in terms of GPUs, threadblocks and steps.

`examine` checks, in order: the executor's limits (`limits`), the rendezvous of steps
(`connections`), and the algorithm as a program (`assembly`) by the verifier of
`headrace.collectives.plan.verify`, once for each kind of call that selects the algorithm.

Deadlocks are detected with nothing buffered. NCCL's connections do buffer: 8 chunks, with the
Simple protocol 2 (`assembly.chunks_held`). Algorithms of other tools often rely on it (a ring whose
threadblocks all send before they receive). If one can only run that way, it is proven for such
connections, with a warning that names the cycle: for calls of any size; or, where the file limits
the sizes that select it (`maxBytes`), for these with the runtimes' default buffers, in which one
call can move several chunks (`assembly.chunks_per_call`). MSCCL++'s buffer nothing.

Sizes that select an algorithm are multiples of its chunks, so no message is ever empty, and one
orders the steps of its ends, by way of other GPUs too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.export.algorithm import (
    Algorithm,
    At,
    Finding,
)
from headrace.collectives.export.assembly import (
    Assembly,
    Key,
    chunks_held,
    chunks_per_call,
)
from headrace.collectives.export.buffers import COLLECTIVES, Layout, chunks_of
from headrace.collectives.export.connections import Connections
from headrace.collectives.export.limits import check_limits
from headrace.collectives.export.runtimes import XML, extremes, refusals, unread
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Direction
from headrace.errors import VerificationError

MAX_CELLS = 1 << 23
"""Most slots of all GPUs together that are proven: more would need too much memory."""
MAX_STEPS_IN_ALL = 1 << 20
FREE_CHUNKS, STEP_CHUNKS = 1 << 18, 8
"""Most chunks that the steps move: so many in all, and so many more a step, as in programs."""
FREE_BUFFERED = 1 << 16
"""The same where connections hold chunks: then every chunk is a step of its own."""

_SHOWN_CYCLE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of `examine`.

    Attributes
    ----------
    demand : of the algorithm; None if it could not be derived.
    findings : all of them, fatal ones first.
    """

    demand: Demand | None
    findings: tuple[Finding, ...]

    @property
    def proven(self) -> bool:
        """True if the algorithm is correct in every call that selects it."""
        return not any(finding.fatal for finding in self.findings)


def demand_of(algorithm: Algorithm) -> Demand:
    """Return the demand of `algorithm`.

    MSCCL does not record the root: it is the only GPU with an input (broadcast, scatter) or
    output buffer (reduce, gather), or else the only one that never receives, or never sends;
    GPU 0 if neither singles out one.

    Raises
    ------
    ProgramError : for a collective without a postcondition to prove, or a wrong chunk count.
    """
    name, ranks = algorithm.collective, len(algorithm.gpus)
    if name not in COLLECTIVES:
        why = {
            "alltoallv": "its counts are known at the call only",
            "send": "one end alone is no collective",
            "recv": "one end alone is no collective",
        }.get(name, "it is not one of MSCCL's")
        raise ProgramError(
            f"coll is {name[:40]!r}, which cannot be proven ({why}); needs one of "
            f"{', '.join(COLLECTIVES)}"
        )
    if not ranks:
        raise ProgramError("has no gpu elements, needs one for each of ngpus")
    collective = COLLECTIVES[name]
    chunks = chunks_of(collective, ranks, algorithm.chunks_per_loop)
    root = _root(algorithm, collective) if collective in ROOTED else 0
    return Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)


def _root(algorithm: Algorithm, collective: Collective) -> int:
    spreads = collective in (Collective.BROADCAST, Collective.SCATTER)
    sizes = {gpu.id: gpu.input_chunks if spreads else gpu.output_chunks for gpu in algorithm.gpus}
    served = {
        at[0]
        for at, step in algorithm.steps()
        if (step.kind.receives if spreads else step.kind.sends)
    }
    for candidates in (
        [gpu for gpu, chunks in sizes.items() if chunks],
        [gpu for gpu in sizes if gpu not in served],
    ):
        if len(candidates) == 1:
            return candidates[0]
    return 0


def require_none(fatal: Sequence[Finding], what: str) -> None:
    """Raise VerificationError with the first of `fatal`, which keep `what` from being written."""
    if fatal:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        remedy = "plan with fewer chunks, or export fewer instances"
        raise VerificationError(f"{what}: {fatal[0]}{more}: {remedy}")


def examine(
    algorithm: Algorithm, found_before: Iterable[Finding] = (), *, msccl: bool = True
) -> Verdict:
    """Prove or refute `algorithm`; invalid ones give findings, never exceptions.

    Parameters
    ----------
    found_before : findings of its reader; part of the verdict.
    msccl : it is for MSCCL's executor: check the limits of that, and rely on the buffers of NCCL's
        connections where it needs them.
    """
    rules = check_limits(algorithm)
    findings = [*found_before, *(rule for rule in rules if msccl or rule.rule != "limit")]
    if msccl:
        findings += refusals(extremes(algorithm), XML)
        names = [runtime.name for runtime in unread(algorithm.collective, XML)]
        if names and algorithm.collective in COLLECTIVES:
            text = f"coll is '{algorithm.collective}': refused by {' and '.join(names)}"
            findings.append(Finding("limit", text, fatal=False))
    demand: Demand | None = None
    try:
        demand = demand_of(algorithm)
    except ProgramError as error:
        findings.append(Finding("format", str(error)))
    if demand is not None and not _blocked(findings):
        findings += _size_findings(algorithm, demand)
        if not _blocked(findings):
            buffered = chunks_held(algorithm.protocol) if msccl else 0
            findings += _run_findings(algorithm, demand, buffered)
    findings.sort(key=lambda finding: not finding.fatal)
    return Verdict(demand=demand, findings=tuple(findings))


def _blocked(findings: list[Finding]) -> bool:
    """Return whether an error leaves the steps without a meaning.

    A broken limit does not: only the executor refuses the file.
    """
    return any(finding.fatal and finding.rule != "limit" for finding in findings)


def _size_findings(algorithm: Algorithm, demand: Demand) -> Iterator[Finding]:
    """Check the buffers against the caller's, and the size against the limits of proofs."""
    yield from _beyond(algorithm, demand)
    counts = [step.count for _, step in algorithm.steps()]
    steps, moved = len(counts), sum(counts)
    widest = max(gpu.scratch_chunks for gpu in algorithm.gpus)
    cells = (2 * demand.slots + widest) * demand.ranks
    if moved > (most := FREE_CHUNKS + STEP_CHUNKS * steps):
        yield _too_large(f"moves {moved} chunks", most, steps)
    if demand.conditions > (most := FREE_CHUNKS + 4 * moved):
        text = f"{demand.collective} of {demand.ranks} GPUs has {demand.conditions} chunks to hold "
        text += f"or to deliver, needs at most {most} for steps that move {moved}"
        yield Finding("size", text)
    if cells > MAX_CELLS or steps > MAX_STEPS_IN_ALL:
        text = f"has {cells} chunks in all buffers and {steps} steps, more than is proven here "
        yield Finding("size", f"{text}({MAX_CELLS} and {MAX_STEPS_IN_ALL}); needs fewer chunks")


def _too_large(what: str, most: int, steps: int) -> Finding:
    text = f"{what}, more than is proven here of {steps} steps ({most}); needs fewer chunks"
    return Finding("size", text)


def _beyond(algorithm: Algorithm, demand: Demand) -> Iterator[Finding]:
    layout = Layout(demand=demand, in_place=False)
    sizes: dict[int, dict[str, int]] = {}
    for gpu in algorithm.gpus:
        inputs, outputs = layout.sizes(gpu.id)
        sizes[gpu.id] = {"i": inputs, "o": outputs, "s": gpu.scratch_chunks}
    for at, step in algorithm.steps():
        for location, used in ((step.src, step.kind.reads), (step.dst, step.kind.writes)):
            size = sizes[at[0]][location.buffer]
            if used and location.offset + step.count > size:
                text = f"{step.kind} touches {step.count} chunks from {location}, but "
                text += f"{demand.collective} has {size} chunks in that buffer of that GPU"
                yield Finding("format", text, *at)


def _run_findings(algorithm: Algorithm, demand: Demand, buffered: int) -> list[Finding]:
    connections, findings = Connections.of(algorithm)
    if any(finding.fatal for finding in findings):
        return findings
    cycle = connections.cycle()
    if cycle and buffered:
        counts = [step.count for _, step in algorithm.steps()]
        moved, most = sum(counts), FREE_BUFFERED + STEP_CHUNKS * len(counts)
        if moved > most:
            what = f"moves {moved} chunks one by one, as connections have to buffer some"
            return [*findings, _too_large(what, most, len(counts))]
    for in_place, served in ((False, algorithm.out_of_place), (True, algorithm.in_place)):
        if not served:
            continue
        if in_place and demand.collective is Collective.ALL_TO_ALL:
            text = "is for alltoall in place, which is not provable here: the input is part of the "
            findings.append(Finding("input", f"{text}postcondition; needs inplace=0"))
            continue
        layout = Layout(demand=demand, in_place=in_place)
        if not in_place:
            findings += _written_input(algorithm)
        findings += _execute(connections, layout, cycle, buffered)
    return list(dict.fromkeys(findings))


def _written_input(algorithm: Algorithm) -> list[Finding]:
    for at, step in algorithm.steps():
        if step.kind.writes and step.dst.buffer == "i":
            text = f"{step.kind} writes the caller's input ({step.dst}) in calls that are out of "
            return [Finding("input", f"{text}place; needs outofplace=0 or another location", *at)]
    return []


def _execute(
    connections: Connections, layout: Layout, cycle: list[At], buffered: int
) -> list[Finding]:
    """Verify the algorithm; with `buffered` calls buffered only if it needs that.

    First each chunk is a call of its own, which no size or setting makes worse. Steps wait for
    steps, so calls of more chunks only need fewer of those that a connection holds: the largest
    size that selects the algorithm stands for all.
    """
    buffered = buffered if cycle else 0
    findings, per_call = _executed(connections, layout, buffered, 1), 1
    most = chunks_per_call(connections.algorithm) if buffered else 1
    if most > 1 and any(finding.rule == "deadlock" for finding in findings):
        limited = _executed(connections, layout, buffered, most)
        if not any(finding.rule == "deadlock" for finding in limited):
            findings, per_call = limited, most
    if buffered:
        findings.append(_cycle_finding(connections, cycle, findings, buffered, per_call))
    return findings


def _executed(
    connections: Connections, layout: Layout, buffered: int, per_call: int
) -> list[Finding]:
    """Verify the algorithm where calls move up to `per_call` chunks and `buffered` are buffered."""
    assembly = Assembly(connections, layout, held=buffered, per_call=per_call)
    mode = "in place" if layout.in_place else "out of place"
    claimed = layout.demand.collective
    agree = claimed is Collective.ALLREDUCE
    try:
        program = assembly.program(Collective.ALLREDUCE if agree else Collective.REDUCE)
        verify(program, full_messages=True)
    except ProgramError as error:
        return [Finding("size", f"cannot be proven here: {error}")]
    except VerificationError as error:
        finding = _translated(str(error), assembly, mode)
        if agree and "in another order than rank 0" in str(error):
            finding = replace(finding, rule="agreement", fatal=False)
        return [finding]
    return []


def _cycle_finding(
    connections: Connections,
    cycle: list[At],
    others: list[Finding],
    buffered: int,
    per_call: int,
) -> Finding:
    """Name a cycle of waits, and the buffering by connections that resolves it."""
    text = "with nothing buffered, the wait-for graph has a cycle: "
    if per_call > 1:
        text = (
            f"up to its maxBytes of {connections.algorithm.max_bytes} it runs only because "
            f"connections hold {buffered} calls, each of {per_call} chunks with the runtimes' "
            f"default buffers; with smaller buffers, or beyond these sizes, it may block; {text}"
        )
    elif not any(finding.rule == "deadlock" for finding in others):
        text = f"runs only because connections hold at least {buffered} chunks; {text}"
    return Finding("buffering", text + _cycle_text(connections, cycle), *cycle[0], fatal=False)


def _cycle_text(connections: Connections, cycle: list[At]) -> str:
    """Return a cycle of (waiting step, step waited for) in words."""
    name = connections.name
    text, last = name(cycle[0]), cycle[0]
    pairs = list(zip(cycle[::2], cycle[1::2], strict=True))
    for waiting, on in pairs[:_SHOWN_CYCLE]:
        text += f", matched with {name(waiting)}" if waiting != last else ""
        text += f", which waits for {name(on)}"
        last = on
    if len(pairs) > _SHOWN_CYCLE:
        return f"{text}, ... ({len(pairs) - _SHOWN_CYCLE} more)"
    return text + (f", matched with {name(cycle[0])}" if last != cycle[0] else "")


# The verifier's messages name ranks, lanes and slots of the program in place of the algorithm.
_LANE = re.compile(
    r"rank (?P<rank>\d+), (?:(?P<way>send lane to|receive lane from) rank (?P<peer>\d+)|local lane)"
    r", channel (?P<channel>\d+)(?:, step (?P<step>\d+) \((?P<what>[^()]*)\))?"
)
_SLOT_OF = re.compile(r"rank (\d+), slot (\d+)")
_RULES = {"deadlock": "deadlock", "data race": "race"}
_SLOT = re.compile(r"\bslots? (\d+)(?:\.\.(\d+))?")


def _translated(message: str, assembly: Assembly, mode: str) -> Finding:
    """Translate the verifier's message to the terms of the algorithm."""
    first: list[At] = []
    rank = re.search(r"rank (\d+)", message)
    name = assembly.regions.name

    def lane(match: re.Match[str]) -> str:
        at = assembly.origin_of(_key(match), int(match["step"] or 0))
        if at is None:
            return f"gpu {int(match['rank'])} (channel {match['channel']})"
        first.append(at)
        text = f"gpu {at[0]}, threadblock {at[1]}"
        if match["step"] is None:
            return text
        kind = assembly.connections.threadblocks[at[:2]].steps[at[2]].kind
        return f"{text}, step {at[2]} ({kind}: {_slots(match['what'], name)})"

    text = _LANE.sub(lane, message)
    text = _SLOT_OF.sub(lambda m: f"gpu {m[1]}, {name(int(m[2]))}", text)
    text = _slots(text, name)
    at = first[0] if first else (-1 if rank is None else int(rank[1]), -1, -1)
    rule = next((rule for start, rule in _RULES.items() if message.startswith(start)), "value")
    return Finding(rule, f"{text} ({mode})", *at)


def _key(match: re.Match[str]) -> Key:
    if match["way"] is None:
        return int(match["rank"]), int(Direction.LOCAL), -1, int(match["channel"])
    direction = Direction.SEND if match["way"].startswith("send") else Direction.RECV
    return int(match["rank"]), int(direction), int(match["peer"]), int(match["channel"])


def _slots(text: str, name: Callable[[int], str]) -> str:
    def one(match: re.Match[str]) -> str:
        low = name(int(match[1]))
        return low if match[2] is None else f"{low}..{name(int(match[2]))}"

    return _SLOT.sub(one, text)
