"""Freedom from deadlock: the wait-for graph of all messages, with nothing buffered, is acyclic.

A message is one rendezvous of its matched sends and receives: none ends before all have begun. A
step waits for the step before it in its lane and for its dependencies; a rendezvous waits for what
any of its steps waits for, and not for itself: within a message steps only wait for earlier ones.
If this graph has no cycle no execution can get stuck: of the rendezvous that have not ended, the
first in topological order has nothing left to wait for. An executor that moves the parts of a
message apart waits for less, and one that moves them as one waits for exactly this. A streaming
dependency lets bytes through earlier, but a cycle through one is a deadlock all the same, as its
last byte waits for itself. So the test is exact, for vectors that leave no chunk empty, where
messages are moved as one.
"""

from typing import NoReturn

import numpy as np

from headrace.collectives.plan.verify.structure import SEND, Structure, fail

_SHOWN_WAITS = 12


def running_order(s: Structure) -> np.ndarray:
    """Return all steps (int64) in an order in which they can run (a topological order).

    Messages come as a whole, each send just before its receive. Mostly the messages' own numbers
    are such an order, as planners number them; then no sort is needed.

    Raises
    ------
    VerificationError : with one cycle of steps that wait for each other.
    """
    in_lane = np.flatnonzero(s.position)
    later = np.concatenate([in_lane, s.waiting])
    earlier = np.concatenate([in_lane - 1, s.on])
    # `Structure` has checked that one number is one rendezvous.
    sooner = s.message[earlier] < s.message[later]
    sooner |= (s.message[earlier] == s.message[later]) & (earlier < later)
    turn = s.message if sooner.all() else _searched(s, later, earlier)
    arrives = (s.op != SEND) & (s.partner >= 0)
    send = np.where(arrives, s.partner, np.arange(len(s.op)))
    return np.lexsort((arrives, send, turn))


def _searched(s: Structure, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
    """For every step its rendezvous's place in a topological order (Kahn 1962)."""
    rendezvous = _rendezvous(s)
    node, predecessor = rendezvous[later], rendezvous[earlier]
    backwards = np.flatnonzero((node == predecessor) & (earlier >= later))
    if len(backwards):
        _report_cycle(s, rendezvous, {int(node[backwards[0]])})
    apart = node != predecessor
    node, predecessor = node[apart], predecessor[apart]
    missing: list[int] = np.bincount(node, minlength=len(rendezvous)).tolist()
    by_other = np.lexsort((later[apart], predecessor))
    unlocks: list[int] = node[by_other].tolist()
    ends: list[int] = np.searchsorted(
        predecessor[by_other], np.arange(len(rendezvous) + 1)
    ).tolist()
    ready = [at for at in np.unique(rendezvous).tolist() if not missing[at]]
    for at in ready:  # grows while it is read
        for waits in unlocks[ends[at] : ends[at + 1]]:
            missing[waits] -= 1
            if not missing[waits]:
                ready.append(waits)
    turn = np.full(len(rendezvous), -1)
    turn[ready] = np.arange(len(ready))
    turn = turn[rendezvous]
    if (turn < 0).any():
        _report_cycle(s, rendezvous, set(rendezvous[turn < 0].tolist()))
    return turn


def _rendezvous(s: Structure) -> np.ndarray:
    """For every step its rendezvous: the first send of the message, or the local step."""
    step = np.arange(len(s.op))
    joined = (s.op == SEND) & (s.position > 0) & (np.append(-1, s.message[:-1]) == s.message)
    rendezvous = np.maximum.accumulate(np.where(joined, -1, step))
    return np.where((s.op == SEND) | (s.partner < 0), rendezvous, rendezvous[s.partner])


def _waits_for(s: Structure, step: int) -> list[int]:
    return [step - 1, *s.after(step)] if s.position[step] else s.after(step)


def _report_cycle(s: Structure, rendezvous: np.ndarray, stuck: set[int]) -> NoReturn:
    """Follow the wait-for graph from a stuck step until a step recurs; raise with that cycle."""
    parts: dict[int, list[int]] = {}
    for step, node in enumerate(rendezvous.tolist()):
        if node in stuck:
            parts.setdefault(node, []).append(step)
    path: list[tuple[int, str]] = []
    seen: dict[int, int] = {}
    step = min(stuck)
    while step not in seen:
        seen[step] = len(path)
        blocker, why = _blocker(s, rendezvous, stuck, step), "depends on"
        if blocker is None:
            blocker, why = _held_up(s, rendezvous, stuck, step, parts[int(rendezvous[step])])
        elif s.position[step] and blocker == step - 1:
            why = "comes in its lane after"
        path.append((step, why))
        step = blocker
    cycle = path[seen[step] :]
    shown = [f"{s.name(at)} {why}" for at, why in cycle[:_SHOWN_WAITS]]
    if len(cycle) > _SHOWN_WAITS:
        shown.append(f"... ({len(cycle) - _SHOWN_WAITS} more) ...")
    shown.append(s.name(step))
    fail(f"deadlock: the wait-for graph has a cycle: {' '.join(shown)}; needs one without cycles")


def _blocker(s: Structure, rendezvous: np.ndarray, stuck: set[int], step: int) -> int | None:
    """Return a step that can never run for which `step` itself waits; None if there is none."""
    by_itself = len(stuck) == 1  # a cycle within one rendezvous
    for predecessor in _waits_for(s, step):
        if int(rendezvous[predecessor]) in stuck and (
            by_itself or rendezvous[predecessor] != rendezvous[step]
        ):
            return predecessor
    return None


def _held_up(
    s: Structure, rendezvous: np.ndarray, stuck: set[int], step: int, parts: list[int]
) -> tuple[int, str]:
    """Return another part of the step's rendezvous that waits, and how the two are related."""
    partner = int(s.partner[step])
    if partner >= 0 and _blocker(s, rendezvous, stuck, partner) is not None:
        return partner, "is matched with"
    part_that_waits = next(
        part for part in parts if _blocker(s, rendezvous, stuck, part) is not None
    )
    return part_that_waits, "is part of one message with"
