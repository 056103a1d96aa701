"""The TOML file: what it means, and what is said about a wrong one."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import TestbedError
from headrace.testbed import TestbedSpec
from headrace.testbed.rates import PAYLOAD_SHARE


def read(text: str) -> TestbedSpec:
    return TestbedSpec.from_table(tomllib.loads(text), source="f.toml")


UNEVEN = """
name = "uneven"
[defaults]
host_rate = "400mbit"
uplink_rate = "100mbit"
[[racks]]
hosts = 2
[[racks]]
name = "far"
hosts = ["a", "b", "c"]
host_rate = 25_000_000
uplink_rate = "0.05 gbit"
[hosts.b]
rate = "20mbit"
"""


def test_defaults_racks_and_hosts_override_one_another() -> None:
    spec = read(UNEVEN)
    assert [(rack.name, rack.bytes_per_s) for rack in spec.racks] == [
        ("rack0", 12_500_000),
        ("far", 6_250_000),
    ]
    assert [(h.name, h.rack, h.address, h.bytes_per_s) for h in spec.hosts] == [
        ("host0", 0, "10.77.1.1", 50_000_000),
        ("host1", 0, "10.77.1.2", 50_000_000),
        ("a", 1, "10.77.2.1", 25_000_000),
        ("b", 1, "10.77.2.2", 2_500_000),
        ("c", 1, "10.77.2.3", 25_000_000),
    ]


def test_a_spec_survives_its_own_table() -> None:
    spec = read(UNEVEN)
    assert TestbedSpec.from_table(spec.to_table()) == spec


def test_the_name_is_the_files_by_default(tmp_path: Path) -> None:
    path = tmp_path / "2 Racks_of.toml"
    path.write_text('[[racks]]\nhosts = 1\nhost_rate = "1gbit"\n')
    assert TestbedSpec.load(path).name == "racks-of"


RACK = '[[racks]]\nhosts = 2\nhost_rate = "1gbit"\nuplink_rate = "1gbit"\n'

WRONG = {
    "nothing": ("", "'racks' is missing"),
    "no racks": ("racks = []", r"'racks' is \[\]"),
    "racks a number": ("racks = 2", "'racks': 2 is not a list"),
    "rack a number": ("racks = [2]", r"'racks\[0\]': 2 is not an object"),
    "unknown field": (RACK + "rate = 3", r"'racks\[0\].rate' is unknown, needs one of name, hosts"),
    "unknown top field": ("host = 3\n" + RACK, "'host' is unknown"),
    "no hosts": ('[[racks]]\nhost_rate = "1gbit"', r"'racks\[0\].hosts' is missing"),
    "zero hosts": ("[[racks]]\nhosts = 0", r"'racks\[0\].hosts' is 0"),
    "hosts true": ("[[racks]]\nhosts = true", r"'racks\[0\].hosts' is True"),
    "host name": ('[[racks]]\nhosts = ["A b"]', r"'racks\[0\].hosts\[0\]' is 'A b', needs a lower"),
    "host name reserved": ('[[racks]]\nhosts = ["switch"]', "another name"),
    "host name twice": (
        '[[racks]]\nhosts = ["a", "a"]\nhost_rate = "1gbit"',
        "'a', needs every rack and host to have a name of its own",
    ),
    "host named as rack": (
        '[[racks]]\nname = "a"\nhosts = ["a"]\nhost_rate = "1gbit"',
        "a name of its own",
    ),
    "no rate": ("[[racks]]\nhosts = 1", r"'racks\[0\].host_rate': rate is missing, needs a number"),
    "no uplink rate": (
        '[defaults]\nhost_rate = "1gbit"\n[[racks]]\nhosts = 1\n[[racks]]\nhosts = 1',
        r"'racks\[0\].uplink_rate': rate is missing",
    ),
    "rate unit": ('[[racks]]\nhosts = 1\nhost_rate = "1MB"', "rate is '1MB', needs a number with"),
    "rate low": ('[[racks]]\nhosts = 1\nhost_rate = "1kbit"', "rate is '1kbit'"),
    "rate negative": ("[[racks]]\nhosts = 1\nhost_rate = -1", "rate is -1"),
    "rate high": ('[[racks]]\nhosts = 1\nhost_rate = "200gbit"', "rate is '200gbit'"),
    "override unknown": (
        RACK + '[hosts.x]\nrate = "1gbit"',
        "'hosts.x' is unknown, needs one of host0",
    ),
    "override field": (RACK + "[hosts.host0]\nspeed = 1", r"'hosts.host0.speed' is unknown"),
    "override rate": (RACK + "[hosts.host0]\nrate = 1", r"'hosts.host0.rate': rate is 1, needs"),
    "name": ("name = 3\n" + RACK, "'name' is 3"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_refused_by_field(text: str, message: str) -> None:
    with pytest.raises(TestbedError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith("f.toml: field '")


def test_a_file_that_is_not_toml_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(TestbedError, match="cannot be read: No such file"):
        TestbedSpec.load(path)
    path.write_text("racks = [")
    with pytest.raises(TestbedError, match="not a TOML file"):
        TestbedSpec.load(path)


def test_rates_change_by_host_or_by_rack(spec: TestbedSpec) -> None:
    assert spec.with_rate("host1", 7_000_000).hosts[1].bytes_per_s == 7_000_000
    assert spec.with_rate("rack1", 7_000_000).racks[1].bytes_per_s == 7_000_000
    with pytest.raises(TestbedError, match="'host9' is neither a host nor a rack; hosts: host0"):
        spec.with_rate("host9", 7_000_000)
    with pytest.raises(TestbedError, match="has no uplink"):
        read('[[racks]]\nhosts = 1\nhost_rate = "1gbit"').with_rate("rack0", 7_000_000)


def test_orders() -> None:
    spec = read(UNEVEN)
    assert spec.order("rack") == [0, 1, 2, 3, 4]
    assert spec.order("interleaved") == [0, 2, 1, 3, 4]
    assert spec.order("b,host0, 4") == [3, 0, 4]
    assert spec.order([1, 0]) == [1, 0]
    assert spec.order("random", seed=5) == spec.order("random", seed=5)
    for wrong in ("rack,1", "0,0", "5", "", [7], "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(TestbedError, match="order"):
            spec.order(wrong)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 99))
def test_a_random_order_is_a_permutation(racks: list[int], seed: int) -> None:
    rows = [{"hosts": n, "host_rate": 10**6, "uplink_rate": 10**6} for n in racks]
    spec = TestbedSpec.from_table({"racks": rows})
    assert sorted(spec.order("random", seed=seed)) == list(range(sum(racks)))
    assert sorted(spec.order("interleaved")) == list(range(sum(racks)))


def test_the_true_topology_has_every_constraint() -> None:
    truth = read(UNEVEN).topology("interleaved")
    assert [truth.hosts[host] for host in truth.rank_host] == ["host0", "a", "host1", "b", "c"]
    mbit = {(link.src, link.dst): 8e6 / link.beta_us_per_mb / PAYLOAD_SHARE for link in truth.links}
    assert mbit[0, 2] == pytest.approx(400)  # within rack0
    assert mbit[0, 1] == pytest.approx(50)  # the far uplink
    assert mbit[0, 3] == mbit[3, 4] == pytest.approx(20)  # b's own rate
    assert mbit[1, 4] == pytest.approx(200)  # within far
    shared = {each.name: each for each in truth.shared}
    assert len(shared) == 2 * (5 + 2)
    crossing = {truth.links[i].src for i in shared["far-uplink-out"].links}
    assert crossing == {1, 3, 4}
    assert np.isclose(8e6 / shared["far-uplink-in"].beta_us_per_mb, 50 * PAYLOAD_SHARE)
