"""The verifier's parts against random programs, most of them nonsense.

Random programs are seldom what a demand wants, so the parts are held to what each claims by
itself: `running_order` that a program gets stuck or not, `check_races` that memory is the same
after every interleaving.
"""

import random
from collections import Counter

import numpy as np
import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.verify import order as order_module
from headrace.collectives.plan.verify.clocks import Clocks
from headrace.collectives.plan.verify.history import Writes, histories
from headrace.collectives.plan.verify.order import running_order
from headrace.collectives.plan.verify.races import check_races
from headrace.collectives.plan.verify.structure import Structure
from headrace.collectives.program import Op, Transfer
from headrace.errors import VerificationError
from tests.collectives.plan.chaos import Machine
from tests.collectives.plan.handmade import Draft, Step
from tests.tiers import Sample

SAMPLED = pytest.mark.sampled(1)

_SCRATCH = 5
_RUNS = 24


def _random_draft(rng: random.Random, ranks: int) -> Draft:
    """A few transfers over a few slots, with dependencies on steps before and, rarely, after."""
    made = Draft(Demand(collective=Collective.SCATTER, ranks=ranks), _SCRATCH)
    steps: list[list[Step]] = [[] for _ in range(ranks)]
    for _ in range(rng.randrange(2, 9)):
        count = rng.choice((1, 1, 2, 3))
        src, dst = rng.randrange(ranks), rng.randrange(ranks)
        slots = [ranks + rng.randrange(_SCRATCH - count + 1) for _ in range(2)]
        if src == dst and abs(slots[0] - slots[1]) < count:
            continue
        move = Transfer(src, dst, *slots, rng.random() < 0.3, count, rng.randrange(2))
        halves = dict(zip((src, dst), made.transfer(move), strict=True))
        for rank, step in halves.items():
            step.on += [other for other in steps[rank] if rng.random() < 0.45]
            steps[rank].append(step)
    for own in steps:
        if len(own) > 1 and rng.random() < 0.15:
            early, late = sorted(rng.sample(range(len(own)), 2))
            own[early].on.append(own[late])
    return made


def _refused(made: Draft) -> str:
    structure = Structure.of(made.build())
    try:
        order = running_order(structure)
        for history in histories(structure, order, Writes.of(structure)):
            check_races(structure, order, history)
    except VerificationError as error:
        return str(error)
    return ""


def _outcomes(made: Draft) -> tuple[list[bool], set[str]]:
    """(whether each run without buffers ended, the memories seen after runs that did)."""
    machine = Machine(made.build(), seed=0)
    ended: list[bool] = []
    memories: set[str] = set()
    for run in range(_RUNS):
        problem = machine.run(4 * (run // 2) + run % 2)  # even numbers do not buffer
        if run % 2 == 0:
            ended.append(not problem)
        if not problem:
            memories.add(repr(machine.memory))
    return ended, memories


@SAMPLED
def test_refused_orders_get_stuck_and_accepted_programs_always_end_alike(sample: Sample) -> None:
    rng = random.Random(3 if sample.seed is None else sample.seed)
    tried = 4000 if sample.seed is None else 800
    stuck = accepted = racing = seen_racing = 0
    for _ in range(tried):
        made = _random_draft(rng, rng.choice((1, 1, 2, 3)))
        why = _refused(made)
        ended, memories = _outcomes(made)
        if why.startswith("deadlock"):
            stuck += 1
            assert not any(ended), why
        elif why:
            racing += 1
            seen_racing += len(memories) > 1
            assert all(ended), why
        else:
            accepted += 1
            assert all(ended)
            assert len(memories) == 1
    assert min(stuck, accepted, racing) > 0.05 * tried
    # It is a race detector that may be too strict, but not one that cries at everything.
    assert seen_racing > 0.6 * racing, (seen_racing, racing)


def _races(made: Draft) -> tuple[bool, bool] | None:
    """Races found by short paths first, and by clocks alone; None for a deadlock."""
    structure = Structure.of(made.build())
    try:
        order = running_order(structure)
    except VerificationError:
        return None
    found = [False, False]
    try:
        for history in histories(structure, order, Writes.of(structure)):
            check_races(structure, order, history)
    except VerificationError:
        found[0] = True
    try:
        for rank in np.unique(structure.rank).tolist():
            Clocks(structure, order[structure.rank[order] == rank]).check()
    except VerificationError:
        found[1] = True
    return found[0], found[1]


@SAMPLED
def test_short_paths_hide_no_race_that_clocks_see() -> None:
    rng = random.Random(11)
    both = Counter(_races(_random_draft(rng, rng.choice((1, 1, 2, 3)))) for _ in range(3000))
    assert both[True, False] == both[False, True] == 0
    assert min(both[True, True], both[False, False]) > 300


def test_orders_by_number_and_searched_for_are_both_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers alone are taken where they are an order; where they are not one is looked for."""
    searched: list[bool] = []
    search = order_module._searched

    def noting(s: Structure, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        searched[-1] = True
        return search(s, later, earlier)

    monkeypatch.setattr(order_module, "_searched", noting)
    rng = random.Random(5)
    for _ in range(600):
        structure = Structure.of(_random_draft(rng, rng.choice((1, 2, 3))).build())
        searched.append(False)
        try:
            order = running_order(structure)
        except VerificationError:
            searched.pop()
            continue
        place = np.argsort(order)
        assert sorted(order.tolist()) == list(range(len(structure.op)))
        in_lane = np.flatnonzero(structure.position)
        assert (place[in_lane - 1] < place[in_lane]).all()
        assert (place[structure.on] < place[structure.waiting]).all()
        sends = np.flatnonzero(structure.op == int(Op.SEND))
        assert (place[structure.partner[sends]] == place[sends] + 1).all()
    assert min(sum(searched), len(searched) - sum(searched)) > 50
