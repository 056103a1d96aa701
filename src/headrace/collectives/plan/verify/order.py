"""Freedom from deadlock: the messages of all ranks, with nothing buffered, have a running order.

A message is one meeting of its sends and their receives: none ends before all have begun. A step
waits for the step before it in its lane and for its dependencies; a meeting waits for what any of
its steps waits for, and not for itself: within a message steps only wait for earlier ones. If this
graph has no cycle no execution can get stuck: of the meetings that have not ended, the first in the
order has nothing left to wait for. An executor that moves the parts of a message apart waits for
less, and one that moves them as one waits for exactly this. A streaming dependency lets bytes
through earlier, but a cycle through one is a deadlock all the same, as its last byte waits for
itself. So the test is exact, for vectors that leave no chunk empty, where messages are moved as
one.
"""

from typing import NoReturn

from headrace.collectives.plan.verify.structure import SEND, Structure, fail

_SHOWN_WAITS = 12


def running_order(s: Structure) -> list[int]:
    """Return all steps in an order in which they can run.

    Messages come as a whole, each send just before its receive.

    Raises
    ------
    VerificationError : with one cycle of steps that wait for each other.
    """
    meeting = _meetings(s)
    missing = [0] * len(meeting)
    unlocks: list[list[int]] = [[] for _ in meeting]
    parts: list[list[int]] = [[] for _ in meeting]
    for step, node in enumerate(meeting):
        if s.op[step] == SEND or s.partner[step] < 0:
            parts[node].append(step)
        for earlier in _waits_for(s, step):
            other = meeting[earlier]
            if other != node:
                missing[node] += 1
                unlocks[other].append(node)
            elif earlier >= step:
                _report_cycle(s, meeting, {node})
    ready = [node for node, of in enumerate(parts) if of and not missing[node]]
    order: list[int] = []
    for node in ready:  # grows while it is read
        for step in parts[node]:
            order.append(step)
            if s.partner[step] >= 0:
                order.append(s.partner[step])
        for later in unlocks[node]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if len(order) < len(meeting):
        _report_cycle(s, meeting, set(meeting).difference(ready))
    return order


def _meetings(s: Structure) -> list[int]:
    """For every step its meeting, known by the first send of the message, or by the local step."""
    meeting: list[int] = []
    for step, op in enumerate(s.op):
        joined = op == SEND and s.position[step] > 0 and s.message[step - 1] == s.message[step]
        meeting.append(meeting[step - 1] if joined else step)
    return [
        at if partner < 0 or s.op[step] == SEND else meeting[partner]
        for step, (at, partner) in enumerate(zip(meeting, s.partner, strict=True))
    ]


def _waits_for(s: Structure, step: int) -> list[int]:
    return [step - 1, *s.after[step]] if s.position[step] else s.after[step]


def _report_cycle(s: Structure, meeting: list[int], stuck: set[int]) -> NoReturn:
    """Walk from a stuck step to what it waits for until a step comes again."""
    parts: dict[int, list[int]] = {}
    for step, node in enumerate(meeting):
        if node in stuck:
            parts.setdefault(node, []).append(step)
    path: list[tuple[int, str]] = []
    seen: dict[int, int] = {}
    step = min(stuck)
    while step not in seen:
        seen[step] = len(path)
        blocker, why = _blocker(s, meeting, stuck, step), "depends on"
        if blocker is None:
            blocker, why = _held_up(s, meeting, stuck, step, parts[meeting[step]])
        elif s.position[step] and blocker == step - 1:
            why = "comes in its lane after"
        path.append((step, why))
        step = blocker
    cycle = path[seen[step] :]
    shown = [f"{s.name(at)} {why}" for at, why in cycle[:_SHOWN_WAITS]]
    if len(cycle) > _SHOWN_WAITS:
        shown.append(f"... ({len(cycle) - _SHOWN_WAITS} more) ...")
    shown.append(s.name(step))
    fail("deadlock: " + " ".join(shown) + ", where the circle closes; needs an order without one")


def _blocker(s: Structure, meeting: list[int], stuck: set[int], step: int) -> int | None:
    """Return a step that never runs, for which `step` itself waits."""
    by_itself = len(stuck) == 1  # a meeting that waits for another never stands alone
    for other in _waits_for(s, step):
        if meeting[other] in stuck and (by_itself or meeting[other] != meeting[step]):
            return other
    return None


def _held_up(
    s: Structure, meeting: list[int], stuck: set[int], step: int, parts: list[int]
) -> tuple[int, str]:
    """Return another part of the step's meeting that waits, and how the two hang together."""
    partner = s.partner[step]
    if partner >= 0 and _blocker(s, meeting, stuck, partner) is not None:
        return partner, "meets"
    other = next(part for part in parts if _blocker(s, meeting, stuck, part) is not None)
    return other, "is part of one message with"
