import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruments.perturbed import perturbed
from headrace.errors import SymmetryError
from headrace.topology import Link, SharedCapacity, Switch, Topology
from headrace.topology.automorphism import is_automorphism, link_image, require_automorphism
from headrace.topology.presets import dgx2, dgx_a100, mi250, ndv2, racks, ring, torus
from headrace.topology.refinement import automorphism_generators
from headrace.topology.symmetry import (
    generated_group,
    offset_permutation,
    offset_symmetries,
    orbits,
    translations,
)
from tests.topology.automorphisms import automorphisms


def test_an_offset_turns_every_group() -> None:
    # The corrected formula: groups beyond the first rotate in themselves.
    assert offset_permutation(8, 1, 4).tolist() == [1, 2, 3, 0, 5, 6, 7, 4]
    assert offset_permutation(8, 4, 8).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    with pytest.raises(SymmetryError, match=r"\[1, 3\]: groups of 3 do not divide 8 ranks"):
        offset_permutation(8, 1, 3)


def test_the_offsets_of_taccls_sketches_are_symmetries() -> None:
    for made, offsets in ((ndv2(2), [(8, 16)]), (dgx2(2), [(2, 16), (16, 32)])):
        for offset, group in offsets:
            require_automorphism(made, offset_permutation(made.ranks, offset, group), hosts=True)


def test_reasons_name_the_offending_link() -> None:
    mesh = ndv2()
    turn = offset_permutation(8, 1, 4)
    assert is_automorphism(mesh, turn) == (
        "links[0] (0 -> 1) has beta_us_per_mb 23.0, the link it goes to (1 -> 2) has 46.0"
    )
    reason = is_automorphism(ring(6), [1, 0, 2, 3, 4, 5])
    assert reason == "links[1] (0 -> 5) would go to 1 -> 5, where there is no link"
    assert (
        is_automorphism(mesh, [0, 0, 1, 2, 3, 4, 5, 6])
        == "it is no permutation of the ranks 0 to 7"
    )
    with pytest.raises(
        SymmetryError, match=r"offset \[1, 4\] is no automorphism of ndv2-x1: links\[0\]"
    ):
        require_automorphism(mesh, turn, "offset [1, 4]")


def test_shared_capacities_must_go_to_shared_capacities() -> None:
    made = dgx2(2)
    shift = np.r_[offset_permutation(16, 1, 16), np.arange(16, 32)]
    # GPUs 1 and 2 have NICs of their own; all links are there, and cost the same.
    reason = is_automorphism(made, shift)
    assert reason is not None
    assert "node0-nic-out-0 (that of link 0 -> 16)" in reason
    assert is_automorphism(replace(made, shared=()), shift) is None


def test_switches_must_go_to_switches_alike() -> None:
    links = tuple(
        Link(src=s, dst=d, alpha_us=1.0, beta_us_per_mb=1.0) for s in range(2) for d in range(2, 4)
    )
    made = Topology(
        name="t",
        hosts=("a",),
        rank_host=(0,) * 4,
        links=links,
        switches=(Switch(name="x", links=(0, 1), multicast=True), Switch(name="y", links=(2, 3))),
    )
    swap = [1, 0, 2, 3]
    assert "switches[0] x" in (is_automorphism(made, swap) or "")
    assert is_automorphism(made, [0, 1, 3, 2]) is None
    alike = replace(made, switches=tuple(replace(s, multicast=True) for s in made.switches))
    assert is_automorphism(alike, swap) is None


def test_equal_capacities_count() -> None:
    links = tuple(Link(src=i, dst=2 + i, alpha_us=1.0, beta_us_per_mb=1.0) for i in range(2))
    both = [
        SharedCapacity(name=n, links=(i,), beta_us_per_mb=5.0)
        for n, i in (("a", 0), ("b", 0), ("c", 1))
    ]
    made = Topology(name="t", hosts=("a",), rank_host=(0,) * 4, links=links, shared=tuple(both))
    assert is_automorphism(made, [1, 0, 3, 2]) is not None  # two there, one here
    assert is_automorphism(replace(made, shared=tuple(both[1:])), [1, 0, 3, 2]) is None


def test_hosts_may_be_kept_together() -> None:
    made = replace(ring(4), hosts=("a", "b"), rank_host=(0, 0, 1, 1))
    turn = offset_permutation(4, 1, 4)
    assert is_automorphism(made, turn) is None
    assert "of host a would go to different hosts" in (
        is_automorphism(made, turn, hosts=True) or ""
    )
    assert is_automorphism(made, offset_permutation(4, 2, 4), hosts=True) is None


def test_a_tolerance_ignores_noise_of_measured_costs() -> None:
    made = perturbed(ring(5), 1, 0.01)
    turn = offset_permutation(5, 1, 5)
    assert is_automorphism(made, turn) is not None
    assert is_automorphism(made, turn, tolerance=0.05) is None


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    ranks = draw(st.integers(1, 6))
    pairs = [(s, d) for s in range(ranks) for d in range(ranks) if s != d]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = tuple(
        Link(src=s, dst=d, alpha_us=1.0, beta_us_per_mb=draw(st.sampled_from((1.0, 2.0))))
        for s, d in chosen
    )
    some = st.sets(st.integers(0, len(links) - 1), min_size=1) if links else st.nothing()
    members = draw(st.lists(some, max_size=3)) if links else []
    shared = tuple(
        SharedCapacity(
            name=f"s{i}", links=tuple(sorted(m)), beta_us_per_mb=draw(st.sampled_from((3.0, 4.0)))
        )
        for i, m in enumerate(members)
    )
    return Topology(name="g", hosts=("h",), rank_host=(0,) * ranks, links=links, shared=shared)


@settings(max_examples=150)
@given(graphs())
def test_the_search_finds_what_trying_everything_finds(made: Topology) -> None:
    def plain(perm: tuple[int, ...]) -> bool:
        """From the definition, on sets: shares nothing with the code under test."""
        moved = {(perm[k.src], perm[k.dst], k.beta_us_per_mb) for k in made.links}
        if moved != {(k.src, k.dst, k.beta_us_per_mb) for k in made.links}:
            return False

        def shares(through: tuple[int, ...]) -> list[tuple[float, list[tuple[int, int]]]]:
            return sorted(
                (
                    s.beta_us_per_mb,
                    sorted(
                        (through[made.links[i].src], through[made.links[i].dst]) for i in s.links
                    ),
                )
                for s in made.shared
            )

        return shares(perm) == shares(tuple(range(made.ranks)))

    wanted = {perm for perm in itertools.permutations(range(made.ranks)) if plain(perm)}
    found = automorphisms(made)
    assert {tuple(perm) for perm in found.tolist()} == wanted
    assert automorphism_generators(made)[1] == len(wanted) == len(found)
    assert found[0].tolist() == list(range(made.ranks))
    for perm in itertools.permutations(range(made.ranks)):
        assert (is_automorphism(made, perm) is None) == (perm in wanted)


@pytest.mark.sampled(4, of="long plans")
def test_sixty_four_ranks_are_searched_quickly() -> None:
    for made in (ndv2(8), dgx2(4), dgx_a100(8), torus((4, 4, 4)), mi250(4)):
        found, order = automorphism_generators(made)
        assert order > 100
        assert all(is_automorphism(made, perm) is None for perm in found)


def test_search_that_takes_too_long_says_so() -> None:
    with pytest.raises(SymmetryError, match="took too many steps, needs a higher effort"):
        automorphism_generators(dgx2(4), effort=100_000)


def test_generated_groups() -> None:
    turn, mirror = offset_permutation(5, 1, 5), [0, 4, 3, 2, 1]
    group = generated_group([turn, mirror])
    assert group.dtype == np.int32
    assert group.shape == (10, 5)
    assert group[0].tolist() == [0, 1, 2, 3, 4]
    assert len({tuple(perm) for perm in group.tolist()}) == 10
    assert all(is_automorphism(ring(5), perm) is None for perm in group)
    with pytest.raises(SymmetryError, match="generate more than 9 elements"):
        generated_group([turn, mirror], limit=9)
    with pytest.raises(SymmetryError, match="no permutations are given"):
        generated_group([])


@pytest.mark.parametrize(
    "made",
    [ring(7), ring(6, one_way=True), torus((3, 4)), torus((2, 3, 4)), dgx2(2), dgx_a100(3)],
    ids=lambda t: t.name,
)
def test_translations_take_any_rank_to_any_other_in_one_way(made: Topology) -> None:
    group = translations(made)
    assert group is not None
    assert np.array_equal(group[:, 0], np.arange(made.ranks))
    for column in group.T:
        assert np.array_equal(np.sort(column), np.arange(made.ranks))
    known = {perm.tobytes() for perm in group}
    assert all(is_automorphism(made, perm) is None for perm in group)
    assert all(a[b].tobytes() in known for a in group for b in group)


def test_irregular_topologies_have_no_translations() -> None:
    assert translations(ndv2()) is None
    assert translations(mi250()) is None
    assert translations(perturbed(ring(6), 0)) is None
    assert translations(racks((2, 3), host_bytes_per_s=1e9, uplink_bytes_per_s=1e9)) is None


def test_offset_symmetries_are_those_of_sketches() -> None:
    assert (16, 32) in offset_symmetries(dgx2(2))
    assert (2, 16) in offset_symmetries(dgx2(2))
    assert offset_symmetries(ndv2(2)) == [(2, 4), (4, 8), (8, 16)]
    assert offset_symmetries(perturbed(ndv2(2), 0)) == []


def test_orbits_of_ranks_and_links() -> None:
    made = ndv2(2)
    turn = offset_permutation(16, 8, 16)
    assert orbits(16, [turn]).tolist() == [*range(8), *range(8)]
    labels = orbits(len(made.links), [link_image(made, turn)])
    assert len(set(labels.tolist())) == len(made.links) // 2
    assert orbits(3, []).tolist() == [0, 1, 2]
    regular = torus((4, 4))
    generators, _ = automorphism_generators(regular)
    assert set(orbits(len(regular.links), [link_image(regular, g) for g in generators])) == {0}


@given(st.integers(1, 40), st.data())
def test_orbits_are_the_cycles(size: int, data: st.DataObject) -> None:
    perms = [data.draw(st.permutations(range(size))) for _ in range(data.draw(st.integers(1, 2)))]
    labels = orbits(size, [np.array(perm) for perm in perms])
    for item in range(size):
        reached, open_ = {item}, [item]
        while open_:
            at = open_.pop()
            fresh = {perm[at] for perm in perms} - reached
            reached |= fresh
            open_ += fresh
        assert labels[item] == min(reached)


def test_link_image_is_minus_one_where_there_is_no_link() -> None:
    made = ring(4, one_way=True)
    assert link_image(made, [0, 3, 2, 1]).tolist() == [-1, -1, -1, -1]
    assert link_image(made, [1, 2, 3, 0]).tolist() == [1, 2, 3, 0]
