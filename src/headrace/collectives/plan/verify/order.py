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

import numpy as np

from headrace.collectives.plan.verify.structure import SEND, Structure, fail

_SHOWN_WAITS = 12


def running_order(s: Structure) -> np.ndarray:
    """Return all steps (int64) in an order in which they can run.

    Messages come as a whole, each send just before its receive. Mostly the messages' own numbers
    are such an order, as planners number them; then there is nothing to search for.

    Raises
    ------
    VerificationError : with one cycle of steps that wait for each other.
    """
    in_lane = np.flatnonzero(s.position)
    later = np.concatenate([in_lane, s.waiting])
    earlier = np.concatenate([in_lane - 1, s.on])
    # `Structure` has seen to it that one number is one meeting.
    sooner = s.message[earlier] < s.message[later]
    sooner |= (s.message[earlier] == s.message[later]) & (earlier < later)
    turn = s.message if sooner.all() else _searched(s, later, earlier)
    arrives = (s.op != SEND) & (s.partner >= 0)
    send = np.where(arrives, s.partner, np.arange(len(s.op)))
    return np.lexsort((arrives, send, turn))


def _searched(s: Structure, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
    """For every step its meeting's turn: what waits for nothing that is left (Kahn 1962)."""
    meeting = _meetings(s)
    node, other = meeting[later], meeting[earlier]
    backwards = np.flatnonzero((node == other) & (earlier >= later))
    if len(backwards):
        _report_cycle(s, meeting, {int(node[backwards[0]])})
    apart = node != other
    node, other = node[apart], other[apart]
    missing: list[int] = np.bincount(node, minlength=len(meeting)).tolist()
    by_other = np.lexsort((later[apart], other))
    unlocks: list[int] = node[by_other].tolist()
    ends: list[int] = np.searchsorted(other[by_other], np.arange(len(meeting) + 1)).tolist()
    ready = [at for at in np.unique(meeting).tolist() if not missing[at]]
    for at in ready:  # grows while it is read
        for waits in unlocks[ends[at] : ends[at + 1]]:
            missing[waits] -= 1
            if not missing[waits]:
                ready.append(waits)
    turn = np.full(len(meeting), -1)
    turn[ready] = np.arange(len(ready))
    turn = turn[meeting]
    if (turn < 0).any():
        _report_cycle(s, meeting, set(meeting[turn < 0].tolist()))
    return turn


def _meetings(s: Structure) -> np.ndarray:
    """For every step its meeting, known by the first send of the message, or by the local step."""
    step = np.arange(len(s.op))
    joined = (s.op == SEND) & (s.position > 0) & (np.append(-1, s.message[:-1]) == s.message)
    meeting = np.maximum.accumulate(np.where(joined, -1, step))
    return np.where((s.op == SEND) | (s.partner < 0), meeting, meeting[s.partner])


def _waits_for(s: Structure, step: int) -> list[int]:
    return [step - 1, *s.after(step)] if s.position[step] else s.after(step)


def _report_cycle(s: Structure, meeting: np.ndarray, stuck: set[int]) -> NoReturn:
    """Walk from a stuck step to what it waits for until a step comes again."""
    parts: dict[int, list[int]] = {}
    for step, node in enumerate(meeting.tolist()):
        if node in stuck:
            parts.setdefault(node, []).append(step)
    path: list[tuple[int, str]] = []
    seen: dict[int, int] = {}
    step = min(stuck)
    while step not in seen:
        seen[step] = len(path)
        blocker, why = _blocker(s, meeting, stuck, step), "depends on"
        if blocker is None:
            blocker, why = _held_up(s, meeting, stuck, step, parts[int(meeting[step])])
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


def _blocker(s: Structure, meeting: np.ndarray, stuck: set[int], step: int) -> int | None:
    """Return a step that never runs, for which `step` itself waits."""
    by_itself = len(stuck) == 1  # a meeting that waits for another never stands alone
    for other in _waits_for(s, step):
        if int(meeting[other]) in stuck and (by_itself or meeting[other] != meeting[step]):
            return other
    return None


def _held_up(
    s: Structure, meeting: np.ndarray, stuck: set[int], step: int, parts: list[int]
) -> tuple[int, str]:
    """Return another part of the step's meeting that waits, and how the two hang together."""
    partner = int(s.partner[step])
    if partner >= 0 and _blocker(s, meeting, stuck, partner) is not None:
        return partner, "meets"
    other = next(part for part in parts if _blocker(s, meeting, stuck, part) is not None)
    return other, "is part of one message with"
