import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import TopologyError
from headrace.topology import Topology, subgraph, transposed, without_local_alpha
from headrace.topology.presets import PRESETS, dgx2, dgx2_taccl_1mb, ndv2, ring
from headrace.topology.transforms import restricted
from tests.topology.examples import EXAMPLES

TOPOLOGIES = [preset(**EXAMPLES.get(name, {})) for name, preset in PRESETS.items()] + [
    ndv2(2),
    dgx2_taccl_1mb(2),
]


def test_without_local_alpha_keeps_that_of_links_between_hosts() -> None:
    made = without_local_alpha(ndv2(2))
    assert {link.alpha_us for link in made.links if link.src // 8 == link.dst // 8} == {0.0}
    assert {link.alpha_us for link in made.links if link.src // 8 != link.dst // 8} == {1.7}
    assert made.shared == ndv2(2).shared
    assert without_local_alpha(ring(4)) == ring(4)  # every rank is a host


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_transposing_turns_links_in_place_and_twice_is_nothing(topology: Topology) -> None:
    made = transposed(topology)
    assert [(k.dst, k.src) for k in made.links] == [(k.src, k.dst) for k in topology.links]
    assert made.shared == topology.shared
    assert made.switches == topology.switches
    assert made.name != topology.name
    assert transposed(made) == topology


@given(st.data())
def test_a_subgraph_keeps_chosen_links_and_what_they_share(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(TOPOLOGIES))
    total = len(topology.links)
    keep = data.draw(st.sets(st.integers(0, total - 1)))
    made = subgraph(topology, keep)
    old = sorted(keep)
    assert made.links == tuple(topology.links[i] for i in old)
    for field in ("shared", "switches"):
        left = {s.name: {old[i] for i in s.links} for s in getattr(made, field)}
        wanted = {s.name: keep & set(s.links) for s in getattr(topology, field)}
        assert left == {name: links for name, links in wanted.items() if links}


def test_a_subgraph_of_links_that_are_not_there_is_refused() -> None:
    with pytest.raises(TopologyError, match="keep_links has 6, needs 0 to 5"):
        subgraph(ring(3), [0, 6])
    with pytest.raises(TopologyError, match="keep_links has -1, needs 0 to 5"):
        subgraph(ring(3), [-1])


def test_some_ranks_keep_what_is_left_of_capacities_and_switches() -> None:
    whole = dgx2(2)
    chosen = (20, 3, 1)
    some = restricted(whole, chosen, "some")
    assert (some.name, some.ranks, some.rank_host) == ("some", 3, (0, 1, 1))
    assert some.hosts == (whole.hosts[1], whole.hosts[0])
    for link in some.links:
        old = whole.links[whole.link_index[chosen[link.src], chosen[link.dst]]]
        assert (link.alpha_us, link.beta_us_per_mb) == (old.alpha_us, old.beta_us_per_mb)
    assert [(link.src, link.dst) for link in some.links] == sorted(some.link_index)
    for field in ("shared", "switches"):
        found = {
            row.name: {(chosen[some.links[k].src], chosen[some.links[k].dst]) for k in row.links}
            for row in getattr(some, field)
        }
        wanted = {
            row.name: {(whole.links[k].src, whole.links[k].dst) for k in row.links}
            & {(a, b) for a in chosen for b in chosen}
            for row in getattr(whole, field)
        }
        assert found == {name: links for name, links in wanted.items() if links}
        assert found
