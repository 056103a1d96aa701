"""Rendezvous of an algorithm: sends matched with receives, dependencies resolved, cycles found.

A send and its receive are one rendezvous: nothing is buffered, not even inside a fused step, which
receives as fast as it can send on. So all steps matched, directly or through fused steps, are one
node; if the wait-for graph of nodes has no cycle, no run can deadlock, however little the
connections hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.collectives.export.algorithm import (
    RECEIVING,
    SENDING,
    Algorithm,
    Finding,
    Kind,
    Threadblock,
    Wait,
)

At = tuple[int, int, int]
"""(gpu, threadblock, step)."""


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
        found: list[Finding] = []
        rendezvous = list(_rendezvous(threadblocks, found))
        waits = _waits(threadblocks, found)
        connections = cls(
            algorithm=algorithm, rendezvous=rendezvous, waits=waits, threadblocks=threadblocks
        )
        return connections, found

    def name(self, at: At) -> str:
        """Return the step's GPU, threadblock, number and kind in words."""
        kind = self.threadblocks[at[:2]].steps[at[2]].kind
        return f"gpu {at[0]}, threadblock {at[1]}, step {at[2]} ({kind})"

    def cycle(self) -> list[At]:
        """Return a cycle of the wait-for graph with nothing buffered; [] if it has none."""
        node = _merged_by_rendezvous(self)
        before: dict[At, list[tuple[At, At]]] = {}  # node -> (waiting step, step waited for)
        for (gpu, tb), threadblock in self.threadblocks.items():
            for number in range(len(threadblock.steps)):
                at = (gpu, tb, number)
                edges = before.setdefault(node[at], [])
                if number:
                    edges.append((at, (gpu, tb, number - 1)))
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
    root: dict[At, At] = {
        (gpu, tb, number): (gpu, tb, number)
        for (gpu, tb), threadblock in connections.threadblocks.items()
        for number in range(len(threadblock.steps))
    }

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
    threadblocks: dict[tuple[int, int], Threadblock], found: list[Finding]
) -> Iterator[tuple[At, At]]:
    sends = _ends(threadblocks, "send", found)
    receives = _ends(threadblocks, "recv", found)
    for key in sorted({*sends, *receives}):
        src, dst, channel = key
        connection = f"from gpu {src} to gpu {dst} on channel {channel}"
        out, into = sends.get(key, []), receives.get(key, [])
        if len(out) != len(into):
            k = min(len(out), len(into))
            what, at = ("sends", out[k]) if len(out) > k else ("receives", into[k])
            found.append(
                _finding(
                    "connection",
                    at,
                    f"{what} message {k} {connection}, where {len(out)} are sent and "
                    f"{len(into)} received; needs as many",
                )
            )
        for send, receive in zip(out, into, strict=False):
            a = threadblocks[send[:2]].steps[send[2]].count
            b = threadblocks[receive[:2]].steps[receive[2]].count
            if a != b:
                found.append(
                    _finding(
                        "connection",
                        send,
                        f"sends {a} chunks {connection}, but gpu {dst}, threadblock "
                        f"{receive[1]}, step {receive[2]} takes {b}; needs equal counts",
                    )
                )
            yield send, receive


def _ends(
    threadblocks: dict[tuple[int, int], Threadblock], end: str, found: list[Finding]
) -> dict[tuple[int, int, int], list[At]]:
    """Return by (src, dst, channel) the steps at one end of the connection."""
    ends: dict[tuple[int, int, int], list[At]] = {}
    owner: dict[tuple[int, int, int], int] = {}
    sending = end == "send"
    for (gpu, tb), threadblock in sorted(threadblocks.items(), key=lambda item: item[0]):
        kinds = SENDING if sending else RECEIVING
        steps = [(gpu, tb, k) for k, s in enumerate(threadblock.steps) if s.kind in kinds]
        if not steps:
            continue
        peer = threadblock.send if sending else threadblock.recv
        key = (gpu, peer, threadblock.channel) if sending else (peer, gpu, threadblock.channel)
        if key in ends:
            found.append(
                _finding(
                    "connection",
                    steps[0],
                    f"threadblock {owner[key]} has the same {end} peer {peer} on channel "
                    f"{threadblock.channel}: both would use one connection at once; "
                    "needs another channel",
                )
            )
            continue
        ends[key], owner[key] = steps, tb
    return ends


def _waits(
    threadblocks: dict[tuple[int, int], Threadblock], found: list[Finding]
) -> dict[At, list[At]]:
    """Resolve dependencies as the executor does: to the first flagged step from there on."""
    waits: dict[At, list[At]] = {}
    published = {key: _published(threadblock) for key, threadblock in threadblocks.items()}
    for (gpu, tb), threadblock in threadblocks.items():
        pending: list[At] = []
        for number, step in enumerate(threadblock.steps):
            at = (gpu, tb, number)
            if step.depends is not None:
                on = _resolve(threadblocks, published, at, step.depends, found)
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
    found: list[Finding],
) -> At | None:
    gpu = at[0]
    other = threadblocks.get((gpu, wait.threadblock))
    if other is None:
        found.append(
            _finding("format", at, f"depid is {wait.threadblock}, which the GPU does not have")
        )
        return None
    if not 0 <= wait.step < len(other.steps):
        found.append(
            _finding(
                "format",
                at,
                f"deps is {wait.step}, needs a step of threadblock {wait.threadblock} "
                f"(0 to {len(other.steps) - 1})",
            )
        )
        return None
    target = other.steps[wait.step]
    meant = f"step {wait.step} of threadblock {wait.threadblock}"
    flagged = published[gpu, wait.threadblock][wait.step]
    if flagged is None:
        found.append(
            _finding(
                "deadlock",
                at,
                f"waits for {meant}, but neither it nor a later one has hasdep=1: "
                "its end is never published; needs hasdep=1 there",
            )
        )
        return None
    if wait.threadblock == at[1] and flagged >= at[2]:
        found.append(
            _finding("deadlock", at, f"waits for {meant}, its own, which does not come before it")
        )
        return None
    if flagged != wait.step:
        why = "is a nop" if target.kind is Kind.NOP else "has hasdep=0"
        found.append(
            _finding(
                "format",
                at,
                f"waits for {meant}, which {why}: it waits until step {flagged}",
                fatal=False,
            )
        )
    return gpu, wait.threadblock, flagged


def _finding(rule: str, at: At, message: str, *, fatal: bool = True) -> Finding:
    return Finding(
        rule=rule, message=message, gpu=at[0], threadblock=at[1], step=at[2], fatal=fatal
    )
