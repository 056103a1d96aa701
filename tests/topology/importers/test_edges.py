from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import TopologyError
from headrace.topology.importers import import_topology, parse_edges
from headrace.topology.presets import PRESETS, ring
from tests.topology.examples import EXAMPLES

SAMPLES = Path(__file__).parent.parent / "samples"


def test_units_and_separators_come_to_the_same() -> None:
    made = import_topology(SAMPLES / "ring.edges")
    assert made.name == "ring"
    wanted = ring(4, bytes_per_s=50e9)
    assert set(made.links) == set(wanted.links)
    assert (made.hosts, made.rank_host) == (wanted.hosts, wanted.rank_host)


def test_a_header_gives_the_unit() -> None:
    made = import_topology(SAMPLES / "rates.csv")
    assert [k.beta_us_per_mb for k in made.links] == [40.0, 40.0]
    assert (
        parse_edges(b"src dst alpha_us bytes_per_s\n0 1 0 1e12", "f", name="n")
        .links[0]
        .beta_us_per_mb
        == 1.0
    )
    assert parse_edges(b"0 1 0 2.5", "f", name="n").links[0].beta_us_per_mb == 2.5


def test_ranks_may_be_divided_among_hosts() -> None:
    made = import_topology(SAMPLES / "ring.edges", nodes=2)
    assert made.rank_host == (0, 0, 1, 1)
    with pytest.raises(TopologyError, match="nodes is 3, needs a divisor of the 4 ranks"):
        import_topology(SAMPLES / "ring.edges", nodes=3)


@given(st.sampled_from(["ring", "mesh", "torus", "hub_and_spoke"]))
def test_written_links_are_read_again(name: str) -> None:
    made = PRESETS[name](**EXAMPLES[name])
    text = "".join(f"{k.src} {k.dst} {k.alpha_us!r} {k.beta_us_per_mb!r}\n" for k in made.links)
    again = parse_edges(text.encode(), "f", name=made.name)
    assert replace(again, hosts=made.hosts) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: has no edges, needs lines 'src dst alpha_us beta_us_per_mb'"),
        ("# nothing\n", "f: has no edges"),
        ("0 1 1", "f:1: has 3 fields, needs 4"),
        ("\n0 1 1 1\n0 x 1 1", "f:3: dst is 'x', needs a rank of 0 to 65535"),
        ("-1 0 1 1", "f:1: src is '-1', needs a rank"),
        ("0 99999999999999999999 1 1", "f:1: dst is '99999999999999999999', needs a rank"),
        ("0 65535 1 1", "f: rank 1 is in no edge though rank 65535 is, needs ranks counted from 0"),
        ("0 0 1 1", "f:1: joins rank 0 to itself, needs two ranks"),
        ("0 1 1 1\n0 1 1 1", "f:2: repeats 0 -> 1 of line 1"),
        ("0 1 fast 1", "f:1: alpha_us is 'fast', needs a number"),
        ("0 1 nan 1", "f:1: alpha_us is 'nan', needs a number"),
        ("0 1 -1 1", "f:1: alpha_us is -1.0, needs a number of at least 0"),
        ("0 1 1 0", "f:1: cost is 0.0, needs a number above 0"),
        ("0 1 1 1e400", "f:1: cost is inf, needs a number above 0"),
        ("0 1 1e13 1", r"f: links\[0\].alpha_us is 10000000000000.0, needs 0 or 1e-09 to 1e\+12"),
        ("0 1 1 5QB/s", "f:1: unit 'QB' is none of B, kB,"),
        ("0 1 1 ..GB/s", "f:1: cost is '..', needs a number"),
        ("src dst beta", "f:1: columns are 'src dst beta', needs 'src dst alpha_us' and one of"),
        ("src dst alpha_us speed\n0 1 1 1", "f:1: columns are"),
    ],
)
def test_errors_name_the_line_and_what_would_do(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_edges(text.encode(), "f", name="n")
