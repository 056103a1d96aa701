"""The orbit verifier refuses every plan that the plain verifier refuses once it is written out."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.orbits.build import plan_orbits
from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.collectives.plan.generators.orbits.plan import ORBIT_COLLECTIVES, OrbitPlan
from headrace.collectives.plan.generators.orbits.simulate import expanded_schedule
from headrace.collectives.plan.generators.orbits.verify import verify_orbits
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.errors import VerificationError
from headrace.topology.presets import dgx_a100, ring, torus
from tests.collectives.plan.generators.orbits.cayley import dihedral_group, network


@cache
def plans(collective: Collective) -> list[OrbitPlan]:
    return [
        plan_orbits(topology, collective, 10**6 * topology.ranks, chunks=(2,)).plan
        for topology in (ring(4), torus((3, 4)), dgx_a100(2))
    ]


def with_sends(plan: OrbitPlan, rows: np.ndarray | None = None, **columns: np.ndarray) -> OrbitPlan:
    sends = {name: columns.get(name, column).copy() for name, column in plan.sends.items()}
    if rows is not None:
        sends = {name: column[rows] for name, column in sends.items()}
        _, number = np.unique(sends["message"], return_inverse=True)
        sends["message"] = number.ravel().astype(np.int32)
    return replace(plan, sends=sends)


def stands(plan: OrbitPlan) -> bool:
    try:
        verify(lower(expanded_schedule(plan)))
    except (ProgramError, VerificationError):
        return False
    return True


@pytest.mark.parametrize("collective", sorted(ORBIT_COLLECTIVES))
def test_sound_plans_pass(collective: Collective) -> None:
    for plan in plans(collective):
        assert verify_orbits(plan).sends == len(plan.sends["dst"])
        assert stands(plan)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutants_are_refused(data: st.DataObject) -> None:
    """Whatever is changed: if the orbit verifier lets it pass, it is right."""
    plan = data.draw(st.sampled_from([p for c in sorted(ORBIT_COLLECTIVES) for p in plans(c)]))
    rows = np.arange(len(plan.sends["dst"]))
    row = data.draw(st.integers(0, len(rows) - 1))
    match data.draw(st.sampled_from(("drop", "repeat", "column", "swap", "first", "last"))):
        case "drop":
            mutant = with_sends(plan, np.delete(rows, row))
        case "repeat":
            mutant = with_sends(plan, np.insert(rows, row, row))
        case "column":
            name = data.draw(st.sampled_from(("block", "chunk", "origin", "reduce", "dst")))
            column = plan.sends[name].copy()
            high = {"chunk": plan.block_chunks, "reduce": 2}.get(name, plan.demand.ranks)
            value = data.draw(st.integers(int(name == "dst"), high - 1))
            assume(value != column[row])
            whole = plan.sends["message"] == plan.sends["message"][row]
            column[whole if name == "dst" else row] = value
            mutant = with_sends(plan, **{name: column})
        case "swap":
            other = data.draw(st.integers(0, len(rows) - 1))
            block = plan.sends["block"].copy()
            assume(block[row] != block[other])
            block[[row, other]] = block[[other, row]]
            mutant = with_sends(plan, block=block)
        case where:
            message = plan.sends["message"]
            moved = message == message[row]
            parts = [rows[moved], rows[~moved]]
            order = np.concatenate(parts if where == "first" else parts[::-1])
            turn = np.repeat(
                np.arange(plan.messages),
                np.bincount(message)[message[order][_firsts(message[order])]],
            )
            sends = {name: column[order] for name, column in plan.sends.items()}
            sends["message"] = turn.astype(np.int32)
            mutant = replace(plan, sends=sends)
    try:
        verify_orbits(mutant)
    except VerificationError:
        return
    assert stands(mutant)


def _firsts(message: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(message, prepend=-1))


@pytest.mark.parametrize("collective", sorted(ORBIT_COLLECTIVES))
def test_a_missing_or_doubled_row_is_always_refused(collective: Collective) -> None:
    for plan in plans(collective):
        rows = np.arange(len(plan.sends["dst"]))
        for row in rows.tolist():
            for kept in (np.delete(rows, row), np.insert(rows, row, row)):
                with pytest.raises(VerificationError, match="orbit plan"):
                    verify_orbits(with_sends(plan, kept))


def test_sent_before_it_has_come() -> None:
    plan = plans(Collective.ALLGATHER)[0]
    order = np.argsort(-plan.sends["message"], kind="stable")
    sends = {name: plan.sends[name][order] for name in plan.sends}
    sends["message"] = np.sort(plan.messages - 1 - plan.sends["message"]).astype(np.int32)
    with pytest.raises(VerificationError, match="arrives only after message"):
        verify_orbits(replace(plan, sends=sends))


def test_generators_that_do_not_reach_all_ranks() -> None:
    plan = plans(Collective.ALLGATHER)[0]
    with pytest.raises(VerificationError, match="no generator leads from rank 0 to rank 1"):
        verify_orbits(replace(plan, generators=np.arange(4, dtype=np.int32)[None, :]))


def test_a_group_that_fixes_a_rank() -> None:
    plan = plans(Collective.ALLGATHER)[0]
    swap = np.array([0, 3, 2, 1], dtype=np.int32)
    generators = np.concatenate([plan.generators, swap[None, :]])
    with pytest.raises(VerificationError, match="two elements of the group take rank 0"):
        verify_orbits(replace(plan, generators=generators))


def test_a_group_that_does_not_commute_is_proven_by_its_table() -> None:
    group: RegularGroup = dihedral_group(3)
    steps = {int(perm[0]): (0.5, 1.0) for perm in group.generators}
    steps |= {int(np.argsort(perm)[0]): (0.5, 1.0) for perm in group.generators}
    plan = plan_orbits(network(group, steps), Collective.ALLGATHER, 6000, group=group).plan
    verify_orbits(plan)
    assert stands(plan)
