"""Chunk counts, symmetries and routes chosen by trying, with the native engine."""

import numpy as np
import pytest

from benchmarks.instruments.perturbed import perturbed
from headrace.collectives.demand import Collective
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.matching import match, symmetry_groups
from headrace.collectives.plan.ir.chunks import realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import InputError
from headrace.topology import presets, without_local_alpha
from tests.waiting import ENDLESS_S

ENGINE = NativeSearch()
MB = 1_000_000
MOVING = [
    c
    for c in Collective
    if c.value in ("allgather", "broadcast", "gather", "scatter", "all_to_all")
]
COMBINING = [Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.ALLREDUCE]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("collective", MOVING)
@pytest.mark.parametrize("seed", [None, 1])
def test_every_collective_that_moves_is_done_in_the_time_claimed(
    collective: Collective, seed: int | None
) -> None:
    topology = presets.torus((3, 2))
    if seed is not None:
        topology = perturbed(topology, seed)
    found = match(topology, collective, 6 * MB, ENGINE, effort="quick", chunk_counts=(1, 3), root=2)
    program = lower(realize(found.demand, found.sends))
    verify(program)
    simulated = simulate(program, topology, 6 * MB, model=FULL)
    assert simulated.total_us == pytest.approx(found.total_us)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("collective", COMBINING)
def test_combining_collectives_are_turned_round(collective: Collective) -> None:
    topology = perturbed(presets.torus((3, 2)), 2)
    found = match(topology, collective, 6 * MB, ENGINE, effort="quick", chunk_counts=(1, 2), root=1)
    program = lower(realize(found.demand, found.sends))
    verify(program)
    simulated = simulate(program, topology, 6 * MB, model=FULL)
    assert simulated.total_us == pytest.approx(found.total_us)
    assert found.demand.collective is collective


@pytest.mark.sampled(4)
def test_the_cube_mesh_is_filled() -> None:
    topology = without_local_alpha(presets.ndv2_taccl_1mb(1))
    whole = match(
        topology, Collective.ALLGATHER, 8 * MB, ENGINE, chunk_counts=(1,), bound_us=69, seed=3
    )
    assert whole.total_us == 69
    split = match(topology, Collective.ALLGATHER, 8 * MB, ENGINE, bound_us=161 / 3)
    assert split.total_us == pytest.approx(161 / 3, rel=1e-3)
    routed = match(topology, Collective.ALL_TO_ALL, 8 * MB, ENGINE, bound_us=368 / 3)
    assert routed.total_us == pytest.approx(368 / 3, rel=1e-3)


def test_the_switch_is_filled() -> None:
    topology = without_local_alpha(presets.dgx2_taccl_1mb(1))
    assert match(
        topology, Collective.ALLGATHER, 16 * MB, ENGINE, bound_us=120
    ).total_us == pytest.approx(120)


def test_equal_arguments_give_equal_results() -> None:
    topology = perturbed(presets.ndv2_taccl_1mb(1), 4)
    one, two = (
        match(
            topology,
            Collective.ALLGATHER,
            MB,
            ENGINE,
            effort="quick",
            max_seconds=ENDLESS_S,
            seed=9,
        )
        for _ in range(2)
    )
    assert (one.demand, one.total_us) == (two.demand, two.total_us)
    assert not one.struck
    assert np.array_equal(one.sends.start_us, two.sends.start_us)
    assert np.array_equal(one.sends.chunk, two.sends.chunk)


def test_a_spent_limit_is_a_result() -> None:
    topology = presets.dgx2_taccl_1mb(1)
    found = match(topology, Collective.ALLGATHER, 16 * MB, ENGINE, max_seconds=0.01)
    assert found.struck
    verify(lower(realize(found.demand, found.sends)))


def test_groups_are_groups_and_keep_the_root() -> None:
    topology = presets.torus((4, 2))
    for fixed in (None, 3):
        groups = symmetry_groups(topology, fixed)
        assert groups
        for group in groups:
            rows = set(map(tuple, group.tolist()))
            assert len(rows) == len(group) > 1
            assert {tuple(a[b] for b in c) for a in rows for c in rows} == rows
            assert fixed is None or set(group[:, fixed].tolist()) == {fixed}
    assert symmetry_groups(perturbed(topology, 0)) == ()


def test_bad_arguments_are_refused() -> None:
    topology = presets.torus((3, 2))
    with pytest.raises(InputError, match="effort is 'heroic'"):
        match(topology, Collective.ALLGATHER, 1, ENGINE, effort="heroic")
    with pytest.raises(InputError, match="total_bytes -1"):
        match(topology, Collective.ALLGATHER, -1, ENGINE)
