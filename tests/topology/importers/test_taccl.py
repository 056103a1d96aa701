import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TopologyError
from headrace.topology.importers import import_topology, parse_taccl
from headrace.topology.presets import dgx2_taccl_1mb, ndv2_taccl_1mb

SAMPLES = Path(__file__).parent.parent / "samples"
COMPACT: dict[str, Any] = json.loads((SAMPLES / "ndv2-1mb.json").read_text())
CUSTOM: dict[str, Any] = json.loads((SAMPLES / "custom-ring.json").read_text())


def changed(table: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({k: v for k, v in {**table, **changes}.items() if v is not None}).encode()


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize(
    ("sample", "preset"), [("ndv2-1mb", ndv2_taccl_1mb), ("dgx2-1mb", dgx2_taccl_1mb)]
)
def test_files_for_1_mb_are_the_presets(sample: str, preset: Any, nodes: int) -> None:
    made = import_topology(SAMPLES / f"{sample}.json", nodes=nodes)
    assert replace(made, name="") == replace(preset(nodes), name="")


def test_costs_for_smaller_chunks_come_to_the_same_per_mb() -> None:
    made = import_topology(SAMPLES / "ndv2-32kb.json", nodes=2)
    for link, same in zip(made.links, ndv2_taccl_1mb(2).links, strict=True):
        assert link.alpha_us == same.alpha_us
        assert link.beta_us_per_mb == pytest.approx(same.beta_us_per_mb, rel=2e-3)  # was rounded


def test_units_follow_from_the_name() -> None:
    made = parse_taccl(changed(COMPACT, name="mine"), "f")
    half = parse_taccl(changed(COMPACT, name="mine_512KB"), "f")
    assert half.links[0].alpha_us == made.links[0].alpha_us
    assert half.links[0].beta_us_per_mb == 2 * made.links[0].beta_us_per_mb
    with pytest.raises(
        TopologyError, match=r"f: the chunk's size in MB is 0.0, needs a number above 0"
    ):
        parse_taccl(changed(COMPACT, name="mine_0KB"), "f")


def test_matrices_are_read_as_destination_then_source() -> None:
    made = import_topology(SAMPLES / "custom-ring.json", nodes=2)
    local = {(k.src, k.dst): k.beta_us_per_mb for k in made.links if k.src < 4 and k.dst < 4}
    assert local == {(0, 1): 20, (1, 2): 20, (2, 3): 40, (3, 0): 20}
    nic = {s.name: {made.links[i].src for i in s.links} for s in made.shared}
    assert nic["node0-nic-out-1"] == {2, 3}  # two NICs for four GPUs, in order


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "f: is not JSON: .*line 1 column 2"),
        (b'{\n "name": }', "f: is not JSON: .*line 2 column 10"),
        (b"[]", r"f: \[\] is not an object"),
        (b"\xff{}", "f: byte 0 is no UTF-8"),
        (b"[" * 100_000, "f: is not JSON"),
        (changed(COMPACT, name=None), "f: field 'name' is missing"),
        (changed(COMPACT, name=7), "f: field 'name': 7 is not a text"),
        (changed(COMPACT, gpus_per_node=0), "field 'gpus_per_node' is 0, needs 1 to 256"),
        (changed(COMPACT, gpus_per_node=10**9), "field 'gpus_per_node' is 1000000000, needs 1 to"),
        (changed(COMPACT, gpus_per_node=7.5), "field 'gpus_per_node': 7.5 is not an integer"),
        (
            changed(COMPACT, gpus_per_node=6),
            "'node_betas_list' has 2 entries for 6 GPUs, needs one",
        ),
        (changed(COMPACT, node_betas_list=[1, 2, 3]), "has 3 entries for 8 GPUs"),
        (
            changed(COMPACT, node_betas_list=[1, 0]),
            r"'node_betas_list\[1\]' is 0.0, needs .* above 0",
        ),
        (
            changed(COMPACT, node_betas_list=[1, "x"]),
            r"'node_betas_list\[1\]': 'x' is not a number",
        ),
        (changed(COMPACT, node_invbws_list=None), "field 'node_invbws_list' is missing"),
        (changed(COMPACT, alpha=-1), "field 'alpha' is -1.0, needs a number of at least 0"),
        (changed(COMPACT, alpha=float("nan")), "f: is not JSON: NaN"),
        (changed(COMPACT, nics_per_node=3), "field 'nics_per_node' is 3, needs a divisor of the 8"),
        (
            changed(COMPACT, nics_per_node=None),
            "so nodes is 2 cannot be, needs nodes 1 or the fields",
        ),
        (changed(COMPACT, remote_beta=None), "field 'remote_beta' is missing"),
        (changed(CUSTOM, betas=[[1]]), "field 'betas' needs 4 rows of 4 numbers each"),
        (changed(CUSTOM, links=7), "field 'links': 7 is not a list"),
        (changed(CUSTOM, links=[[1, 0, 0, 0]] * 4), r"'links\[0\]\[0\]' joins GPU 0 to itself"),
        (changed(CUSTOM, links=[[0, 0, 2, 0]] * 4), r"'links\[0\]\[2\]' is 2.0, needs 0 or 1"),
        (changed(CUSTOM, betas=[[0] * 4] * 4), r"'betas\[0\]\[3\]' is 0.0, needs a number above 0"),
    ],
)
def test_errors_name_the_field_and_what_would_do(content: bytes, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_taccl(content, "f", nodes=2)
