"""Freedom from deadlock: the steps of all ranks, with nothing buffered, have a running order.

A send and its receive are one meeting: neither ends before both have begun. A step waits for the
step before it in its lane and for its dependencies; a meeting waits for what either half waits
for. If this graph has no cycle no execution can get stuck: of the meetings that have not ended,
the first in the order has nothing left to wait for. A streaming dependency lets bytes through
earlier, but a cycle through one is a deadlock all the same, as its last byte waits for itself. So
the test is exact for vectors that leave no chunk empty.
"""

from headrace.collectives.plan.verify.structure import SEND, Structure, fail

_SHOWN_WAITS = 12


def running_order(s: Structure) -> list[int]:
    """Return all steps in an order in which they can run, each send just before its receive.

    Raises
    ------
    VerificationError : with one cycle of steps that wait for each other.
    """
    waits = [_waits_for(s, step) for step in range(len(s.op))]
    # A meeting is known by its send; a local step by itself.
    meeting = [step if s.op[step] == SEND or p < 0 else p for step, p in enumerate(s.partner)]
    missing = [0] * len(waits)
    unlocks: list[list[int]] = [[] for _ in waits]
    for step, earlier in enumerate(waits):
        missing[meeting[step]] += len(earlier)
        for other in earlier:
            unlocks[meeting[other]].append(meeting[step])
    ready = [step for step in range(len(waits)) if meeting[step] == step and not missing[step]]
    order: list[int] = []
    for node in ready:  # grows while it is read
        order.append(node)
        if s.partner[node] >= 0:
            order.append(s.partner[node])
        for later in unlocks[node]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if len(order) < len(waits):
        _report_cycle(s, waits, set(range(len(waits))).difference(order))
    return order


def _waits_for(s: Structure, step: int) -> list[int]:
    return [step - 1, *s.after[step]] if s.position[step] else s.after[step]


def _report_cycle(s: Structure, waits: list[list[int]], stuck: set[int]) -> None:
    """Walk from a stuck step to what it waits for until a step comes again."""
    path: list[tuple[int, str]] = []
    seen: dict[int, int] = {}
    step = min(stuck)
    while step not in seen:
        seen[step] = len(path)
        blocker = next((other for other in waits[step] if other in stuck), None)
        if blocker is None:
            blocker, why = s.partner[step], "meets"
        elif s.position[step] and blocker == step - 1:
            why = "comes in its lane after"
        else:
            why = "depends on"
        path.append((step, why))
        step = blocker
    cycle = path[seen[step] :]
    shown = [f"{s.name(at)} {why}" for at, why in cycle[:_SHOWN_WAITS]]
    if len(cycle) > _SHOWN_WAITS:
        shown.append(f"... ({len(cycle) - _SHOWN_WAITS} more) ...")
    shown.append(s.name(step))
    fail("deadlock: " + " ".join(shown) + ", where the circle closes; needs an order without one")
