import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.artifact import Artifact
from headrace.errors import ArtifactError, TopologyError
from headrace.topology import Topology
from headrace.topology.presets import racks, uniform
from headrace.topology.topology import beta_from_bytes_per_s


def head() -> dict[str, Any]:
    return {
        "name": "pair",
        "hosts": ["a", "b"],
        "rank_host": [0, 1],
        "links": [[0, 1, 10.0, 100.0], [1, 0, 10.0, 100.0]],
        "shared": [{"name": "nic", "links": [0, 1], "beta_us_per_mb": 80.0}],
    }


def test_one_mb_is_a_million_bytes() -> None:
    assert beta_from_bytes_per_s(12.5e6) == 80_000.0  # 100 Mbit/s: a MB takes 80 ms


def test_disk_and_back(tmp_path: Path) -> None:
    made = Topology.from_head(head())
    made.save(tmp_path / "t", provenance={"made_by": "test"})
    again = Topology.load(tmp_path / "t")
    assert again == made
    assert again.digest == made.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "field 'name' is missing"),
        ({"links": None}, "field 'links' is missing"),
        ({"rank_host": []}, "rank_host is empty, needs at least one rank"),
        ({"rank_host": [0, 2]}, r"rank_host\[1\] is 2, needs 0 to 1"),
        ({"rank_host": [0, -1]}, r"rank_host\[1\] is -1, needs 0 to 1"),
        ({"rank_host": ["x"]}, "'rank_host'.* needs .*: .* is not a"),
        ({"rank_host": 3}, "'rank_host'.* needs .*: .* is not a"),
        ({"hosts": "ab"}, "field 'hosts' needs .*: 'ab' is not a list"),
        ({"hosts": ["a", 2]}, "field 'hosts' needs .*: 2 is not a text"),
        ({"rank_host": [0, 0.9]}, "0.9 is not an integer"),
        ({"rank_host": [0, True]}, "True is not an integer"),
        ({"links": [[0.9, 1, 1, 1]]}, "field 'links' .*: 0.9 is not an integer"),
        ({"links": [[False, 1, 1, 1]]}, "field 'links' .*: False is not an integer"),
        ({"links": [[0, 1, True, 1]]}, "field 'links' .*: True is not a number"),
        ({"links": ["0111"]}, "field 'links' .*: '0111' is not a list"),
        (
            {"shared": [{"name": "nic", "links": "01", "beta_us_per_mb": 80.0}]},
            "field 'shared' .*'01' is not a list",
        ),
        (
            {"shared": [{"name": "nic", "links": [0, 1, 0], "beta_us_per_mb": 80.0}]},
            r"shared\[0\] \(nic\): links \[0, 1, 0\] repeats a link",
        ),
        ({"hosts": ["a", "a"]}, "hosts has duplicates"),
        ({"links": [[0, 2, 1, 1]]}, r"links\[0\].dst is 2, needs 0 to 1"),
        ({"links": [[-1, 0, 1, 1]]}, r"links\[0\].src is -1, needs 0 to 1"),
        ({"links": [[1, 1, 1, 1]]}, r"links\[0\] joins rank 1 to itself"),
        ({"links": [[0, 1, 1, 1], [0, 1, 2, 2]]}, r"links\[1\] repeats 0 -> 1"),
        ({"links": [[0, 1, -1, 1]]}, r"links\[0\].alpha_us is -1.0, needs 0 or 1e-09 to 1e\+12 us"),
        ({"links": [[0, 1, 1, 0]]}, r"links\[0\].beta_us_per_mb is 0.0, needs 1e-09 to"),
        ({"links": [[0, 1, 1, float("nan")]]}, r"links\[0\].beta_us_per_mb is nan"),
        ({"links": [[0, 1, float("inf"), 1]]}, r"links\[0\].alpha_us is inf"),
        ({"links": [[0, 1, 1e-320, 1]]}, r"links\[0\].alpha_us is 1e-320, needs 0 or 1e-09"),
        (
            {"links": [[0, 1, 1, 1e308]]},
            r"links\[0\].beta_us_per_mb is 1e\+308, .* us/MB: no network",
        ),
        (
            {"shared": [{"name": "nic", "links": [0], "beta_us_per_mb": 1e-320}]},
            r"shared\[0\].beta_us_per_mb is 1e-320",
        ),
        ({"links": [[0, 1, 1]]}, r"field 'links' needs rows \[src, dst, alpha_us"),
        ({"links": [[0, 1, "fast", 1]]}, "field 'links' needs rows"),
        ({"links": 7}, "field 'links' needs rows"),
        ({"shared": [{"name": "nic"}]}, "field 'shared' needs objects with name, links"),
        ({"shared": 7}, "field 'shared' needs objects"),
        ({"addresses": 7}, "'addresses' needs .*: 7 is not a list"),
        ({"addresses": ["x"]}, "addresses has 1 entries, needs none or one for each of the 2"),
        (
            {"shared": [{"name": "nic", "links": [2], "beta_us_per_mb": 1}]},
            r"shared\[0\] \(nic\): link 2, needs 0 to 1",
        ),
        (
            {"shared": [{"name": "nic", "links": [0], "beta_us_per_mb": 0}]},
            r"shared\[0\].beta_us_per_mb is 0.0, needs 1e-09 to",
        ),
    ],
)
def test_a_bad_topology_names_the_field(changes: dict[str, Any], message: str) -> None:
    bad = {name: value for name, value in {**head(), **changes}.items() if value is not None}
    with pytest.raises(TopologyError, match=message) as caught:
        Topology.from_head(bad, source="bad.topology")
    assert str(caught.value).startswith("bad.topology: ")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    Artifact(kind="plan", schema=1, head=head()).save(tmp_path / "t")
    with pytest.raises(ArtifactError, match="field 'kind' is 'plan', needs 'topology'"):
        Topology.load(tmp_path / "t")


def test_addresses_are_kept_if_there_are_any() -> None:
    made = uniform(2)
    assert "addresses" not in made.to_head()  # as before there were any
    located = replace(made, addresses=("10.0.0.1", "10.0.0.2"))
    assert Topology.from_head(located.to_head()) == located
    with pytest.raises(TopologyError, match="addresses has 1 entries, needs none or one for each"):
        replace(made, addresses=("10.0.0.1",))


def test_racks_share_an_uplink_in_each_direction() -> None:
    made = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6, rank_order=(0, 2, 1, 3))
    across = {made.links[i].src for s in made.shared if s.name == "uplink-out-0" for i in s.links}
    assert across == {0, 2}  # ranks 0 and 2 sit on hosts 0 and 1
    link = made.links[made.link_index[0, 1]]
    assert link.beta_us_per_mb == beta_from_bytes_per_s(12.5e6)
    assert made.links[made.link_index[0, 2]].beta_us_per_mb == beta_from_bytes_per_s(50e6)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.floats(1e5, 1e12),
    st.floats(1e5, 1e12),
)
def test_presets_are_complete_and_survive_the_trip(
    counts: list[int], host: float, uplink: float
) -> None:
    made = racks(tuple(counts), host_bytes_per_s=host, uplink_bytes_per_s=uplink)
    n = sum(counts)
    assert made.ranks == n
    assert len(made.links) == n * (n - 1)
    assert Topology.from_head(made.to_head()) == made


def test_uniform_is_one_rack() -> None:
    made = uniform(3, alpha_us=5.0)
    assert not [s for s in made.shared if s.name.startswith("uplink")]
    assert {link.alpha_us for link in made.links} == {5.0}


def test_equal_topologies_hash_alike_however_often_they_are_asked() -> None:
    one, other = uniform(5), uniform(5)
    assert hash(one) == hash(one) == hash(other)
    assert len({one, other, replace(one, name="another")}) == 2
    assert hash(replace(one, links=one.links[:-1], shared=())) != hash(one)
    assert "_hash" in vars(one)
    assert "_hash" not in vars(pickle.loads(pickle.dumps(one)))  # strings hash otherwise there
    assert pickle.loads(pickle.dumps(one)) == one
