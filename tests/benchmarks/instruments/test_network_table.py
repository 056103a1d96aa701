import json

import numpy as np
import pytest

from benchmarks.instruments.affinity import physical_affinity
from benchmarks.instruments.network_table import (
    NetworkTable,
    load_table,
    save_table,
    table_of_profile,
)
from benchmarks.instruments.simulated_network import nested_positions, simulate_network
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.collectives.measure.survey import survey
from headrace.errors import InputError
from tests.collectives.measure.network import Network, shuffled_racks


def test_a_table_comes_back_as_it_was_written(tmp_path) -> None:
    table = simulate_network(nested_positions(6, (1, 1, 1, 2, 3), seed=1), seed=1)
    assert table.latency_us is not None
    table.latency_us[0, 3] = np.nan
    save_table(table, tmp_path / "table.json")
    found = load_table(tmp_path / "table.json")
    assert found.name == table.name
    assert found.positions == table.positions
    assert found.latency_us == pytest.approx(table.latency_us, rel=1e-3, nan_ok=True)
    assert found.bandwidth == pytest.approx(table.bandwidth, rel=1e-3, nan_ok=True)
    _, known = found.distances()
    assert known.sum() == 30  # the other direction of 0 and 3 is known
    assert known[0, 3]


def test_latency_may_be_comma_separated(tmp_path) -> None:
    path = tmp_path / "eu.csv"
    path.write_text("eu/a/1,,12.5,30\neu/a/2,13,0,\neu/b/3,31,29,\n")
    found = load_table(path)
    assert found.name == "eu"
    assert found.positions == (("eu", "a", "1"), ("eu", "a", "2"), ("eu", "b", "3"))
    assert found.bandwidth is None
    nan = np.nan
    expected = [[nan, 12.5, 30], [13, nan, nan], [31, 29, nan]]
    assert found.latency_us == pytest.approx(np.array(expected), nan_ok=True)
    distances, known = found.distances()
    assert known.sum() == 6
    assert distances[1, 2] - distances[0, 2] == pytest.approx(np.log(29) - np.log(30 * 31) / 2)


def combined(latency: np.ndarray, bandwidth: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Each distance over its median, and those by both."""
    positions = tuple((host,) for host in range(5))
    table = NetworkTable(name="t", positions=positions, latency_us=latency, bandwidth=bandwidth)
    alone = [table.distances(), table.distances(latency=False, bandwidth=True)]
    parts = [values / np.median(values[known]) for values, known in alone]
    both, known = table.distances(bandwidth=True)
    assert known.sum() == 20
    return parts, both


def test_both_together_lie_between_each() -> None:
    latency, bandwidth = np.random.default_rng(1).uniform(1, 9, (2, 5, 5))
    parts, both = combined(latency, bandwidth)
    assert both == pytest.approx((parts[0] + parts[1]) / 2)


def test_a_pair_that_one_of_both_knows_has_that_one() -> None:
    latency, bandwidth = np.random.default_rng(2).uniform(1, 9, (2, 5, 5))
    latency[0, 1] = latency[1, 0] = np.nan
    parts, both = combined(latency, bandwidth)
    assert both[0, 1] == pytest.approx(parts[1][0, 1])


def test_a_table_without_measurements_has_no_distances() -> None:
    with pytest.raises(InputError, match="neither latency_us nor bandwidth"):
        NetworkTable(name="t", positions=((0,), (1,))).distances()


def test_the_pairs_of_a_profile_are_a_table() -> None:
    topology, racks = shuffled_racks((3, 2), 4)
    profile = survey(Network(topology), [topology.hosts[host] for host in topology.rank_host])
    names = profile.topology.hosts
    positions = tuple((name.split("-")[0], name) for name in names)
    found = table_of_profile(profile, positions)
    assert found.hosts == 5
    assert set(map(frozenset, group_hosts(found.bandwidth))) == {
        frozenset(names.index(topology.hosts[topology.rank_host[rank]]) for rank in rack)
        for rack in racks
    }
    distances, known = found.distances(latency=False, bandwidth=True)
    assert known.sum() == 20
    assert physical_affinity(distances, positions).accuracy == 1.0
    assert np.nanmin(found.latency_us) > 0


GOOD = {"positions": [[0, 0], [0, 1]], "latency_us": [[None, 1.0], [2, None]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency_us": [[0, "x"], [1, 0]]}, r"latency_us\[0\]\[1\] is 'x', needs a finite number"),
        ({"latency_us": [[0, -1], [1, 0]]}, r"latency_us\[0\]\[1\] is -1, needs a finite number"),
        ({"latency_us": [[0, 1]]}, "latency_us has 1 rows, needs 2"),
        ({"latency_us": [[0, 1], [1]]}, r"latency_us\[1\] has 1 numbers, needs 2"),
        ({"latency_us": 3}, "needs an object with"),
        ({"positions": [[0.5], [1]]}, "other entries than numbers and texts"),
        ({"name": 7}, "7 is not a text"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, change, message: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(InputError, match=message) as caught:
        load_table(path)
    assert str(path) in str(caught.value)


def test_files_that_are_no_tables_are_named(tmp_path) -> None:
    for name, text, message in (
        ("a.json", "{", "needs an object"),
        ("b.json", json.dumps({"positions": []}), "has no measurements"),
        ("c.txt", "", "needs .json or .csv"),
        ("d.csv", "", "has no measurements"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            load_table(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        load_table(tmp_path / "missing.json")


def test_sizes_have_to_fit() -> None:
    with pytest.raises(InputError, match=r"latency_us has shape \(3, 3\), needs \(2, 2\)"):
        NetworkTable(name="x", positions=((0,), (1,)), latency_us=np.ones((3, 3)))
    with pytest.raises(InputError, match="neither latency_us nor bandwidth"):
        NetworkTable(name="x", positions=((0,), (1,))).distances()
