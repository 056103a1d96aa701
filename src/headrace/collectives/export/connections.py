"""Rendezvous of an algorithm: sends matched with receives, dependencies resolved, cycles found.

A send and its receive are one rendezvous: nothing is buffered, not even inside a fused step, which
receives as fast as it can send on. So all steps matched, directly or through fused steps, are one
node; if the wait-for graph of nodes has no cycle, no run can deadlock, however little the
connections hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.collectives.export.algorithm import (
    Algorithm,
    At,
    Finding,
    Kind,
    Threadblock,
    Wait,
)

_Connection = tuple[int, int, int]
"""(source, destination, channel)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Connections:
    """An algorithm's steps, with their matches and waits.

    Attributes
    ----------
    rendezvous : (sending step, receiving step), the k-th with the k-th of each connection.
    waits : by waiting step, the steps that it waits for.
    threadblocks : by (gpu, threadblock id).
    """

    algorithm: Algorithm
    rendezvous: list[tuple[At, At]]
    waits: dict[At, list[At]]
    threadblocks: dict[tuple[int, int], Threadblock]

    @classmethod
    def of(cls, algorithm: Algorithm) -> tuple["Connections", list[Finding]]:
        """Match the steps of `algorithm`, which must have passed `check_limits`."""
        threadblocks = {(g.id, tb.id): tb for g in algorithm.gpus for tb in g.threadblocks}
        findings: list[Finding] = []
        rendezvous = list(_rendezvous(threadblocks, findings))
        waits = _waits(threadblocks, findings)
        connections = cls(
            algorithm=algorithm, rendezvous=rendezvous, waits=waits, threadblocks=threadblocks
        )
        return connections, findings

    def name(self, at: At) -> str:
        """Return the step's GPU, threadblock, number and kind in words."""
        kind = self.threadblocks[at[:2]].steps[at[2]].kind
        return f"gpu {at[0]}, threadblock {at[1]}, step {at[2]} ({kind})"

    def cycle(self) -> list[At]:
        """Return a cycle of the wait-for graph with nothing buffered; [] if it has none."""
        node = _merged_by_rendezvous(self)
        before: dict[At, list[tuple[At, At]]] = {}  # node -> (waiting step, step waited for)
        for at in node:
            edges = before.setdefault(node[at], [])
            if at[2]:
                edges.append((at, (*at[:2], at[2] - 1)))
            edges.extend((at, on) for on in self.waits.get(at, ()))
        missing = {n: len(edges) for n, edges in before.items()}
        unlocks: dict[At, list[At]] = {}
        for n, edges in before.items():
            for _, on in edges:
                unlocks.setdefault(node[on], []).append(n)
        ready = [n for n, count in missing.items() if not count]
        for n in ready:  # grows while it is read
            for later in unlocks.get(n, ()):
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        stuck = set(missing).difference(ready)
        return _walk(node, before, stuck) if stuck else []


def _walk(node: dict[At, At], before: dict[At, list[tuple[At, At]]], stuck: set[At]) -> list[At]:
    """Return the first cycle on a walk from a stuck node along its waits."""
    path: list[tuple[At, At, At]] = []
    seen: dict[At, int] = {}
    at = min(stuck)
    while at not in seen:
        seen[at] = len(path)
        waiting, on = next(edge for edge in before[at] if node[edge[1]] in stuck)
        path.append((at, waiting, on))
        at = node[on]
    return [step for _, waiting, on in path[seen[at] :] for step in (waiting, on)]


def _merged_by_rendezvous(connections: Connections) -> dict[At, At]:
    """Map every step to the representative of its node, by union and find."""
    root = {at: at for at, _ in connections.algorithm.steps()}

    def find(at: At) -> At:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    for send, receive in connections.rendezvous:
        a, b = find(send), find(receive)
        root[max(a, b)] = min(a, b)
    return {at: find(at) for at in root}


def _rendezvous(
    threadblocks: dict[tuple[int, int], Threadblock], findings: list[Finding]
) -> Iterator[tuple[At, At]]:
    sends = _ends(threadblocks, findings, sending=True)
    receives = _ends(threadblocks, findings, sending=False)
    for key in sorted({*sends, *receives}):
        src, dst, channel = key
        connection = f"from gpu {src} to gpu {dst} on channel {channel}"
        out, into = sends.get(key, []), receives.get(key, [])
        if len(out) != len(into):
            k = min(len(out), len(into))
            what, at = ("sends", out[k]) if len(out) > k else ("receives", into[k])
            text = f"{what} message {k} {connection}, where {len(out)} are sent and "
            findings.append(
                Finding("connection", f"{text}{len(into)} received; needs as many", *at)
            )
        for send, receive in zip(out, into, strict=False):
            a = threadblocks[send[:2]].steps[send[2]].count
            b = threadblocks[receive[:2]].steps[receive[2]].count
            if a != b:
                text = f"sends {a} chunks {connection}, but gpu {dst}, threadblock {receive[1]}, "
                text += f"step {receive[2]} takes {b}; needs equal counts"
                findings.append(Finding("connection", text, *send))
            yield send, receive


def _ends(
    threadblocks: dict[tuple[int, int], Threadblock], findings: list[Finding], *, sending: bool
) -> dict[_Connection, list[At]]:
    """Return by connection the steps at one end of it."""
    ends: dict[_Connection, list[At]] = {}
    for (gpu, tb), threadblock in sorted(threadblocks.items(), key=lambda item: item[0]):
        steps = [
            (gpu, tb, k)
            for k, step in enumerate(threadblock.steps)
            if (step.kind.sends if sending else step.kind.receives)
        ]
        if not steps:
            continue
        peer, channel = threadblock.send if sending else threadblock.recv, threadblock.channel
        key = (gpu, peer, channel) if sending else (peer, gpu, channel)
        if key in ends:
            text = f"threadblock {ends[key][0][1]} has the same {'send' if sending else 'recv'} "
            text += f"peer {peer} on channel {channel}: both would use one connection at once; "
            findings.append(Finding("connection", f"{text}needs another channel", *steps[0]))
            continue
        ends[key] = steps
    return ends


def _waits(
    threadblocks: dict[tuple[int, int], Threadblock], findings: list[Finding]
) -> dict[At, list[At]]:
    """Resolve dependencies as the executor does: to the first flagged step from there on."""
    waits: dict[At, list[At]] = {}
    published = {key: _published(threadblock) for key, threadblock in threadblocks.items()}
    for (gpu, tb), threadblock in threadblocks.items():
        pending: list[At] = []
        for number, step in enumerate(threadblock.steps):
            at = (gpu, tb, number)
            if step.depends is not None:
                on = _resolve(threadblocks, published, at, step.depends, findings)
                if on is not None:
                    pending.append(on)
            if step.kind is not Kind.NOP and pending:
                waits[at], pending = pending, []
    return waits


def _published(threadblock: Threadblock) -> list[int | None]:
    """Return by step the first from there on whose end the executor publishes."""
    following: list[int | None] = [None] * len(threadblock.steps)
    last = None
    for number in reversed(range(len(threadblock.steps))):
        step = threadblock.steps[number]
        last = number if step.flagged and step.kind != Kind.NOP else last
        following[number] = last
    return following


def _resolve(
    threadblocks: dict[tuple[int, int], Threadblock],
    published: dict[tuple[int, int], list[int | None]],
    at: At,
    wait: Wait,
    findings: list[Finding],
) -> At | None:
    def finding(rule: str, message: str, *, fatal: bool = True) -> None:
        findings.append(Finding(rule, message, *at, fatal=fatal))

    gpu, tb, number = at
    awaited = threadblocks.get((gpu, wait.threadblock))
    if awaited is None:
        finding("format", f"depid is {wait.threadblock}, which the GPU does not have")
        return None
    steps = len(awaited.steps)
    if not 0 <= wait.step < steps:
        needs = f"needs a step of threadblock {wait.threadblock} (0 to {steps - 1})"
        finding("format", f"deps is {wait.step}, {needs}")
        return None
    meant = f"waits for step {wait.step} of threadblock {wait.threadblock}"
    flagged = published[gpu, wait.threadblock][wait.step]
    if flagged is None:
        text = f"{meant}, but neither it nor a later one has hasdep=1: "
        finding("deadlock", f"{text}its end is never published; needs hasdep=1 there")
        return None
    if wait.threadblock == tb and flagged >= number:
        finding("deadlock", f"{meant}, its own, which does not come before it")
        return None
    if flagged != wait.step:
        why = "is a nop" if awaited.steps[wait.step].kind is Kind.NOP else "has hasdep=0"
        finding("format", f"{meant}, which {why}: it waits until step {flagged}", fatal=False)
    return gpu, wait.threadblock, flagged
