"""Sketch files: both dialects, errors that name file and field, and nothing that crashes."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.errors import SketchError
from headrace.collectives.plan.generators.taccl.sketch.parse import load_sketch, parse_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Policy,
    RelayMap,
    Strategy,
    Symmetry,
)

REFERENCE = {
    "nnodes": 2,
    "intranode_sketch": {
        "strategy": "switch",
        "switches": [[0, 1, 2, 3]],
        "switch_hyperedge_strategy": ["uc-min"],
    },
    "internode_sketch": {
        "strategy": "relay",
        "internode_conn": {"1": [0], "3": [2]},
        "gpus_to_sender_rev_map": {"1": [0, 1], "3": [2, 3]},
        "enforce_ordering": True,
    },
    "symmetry_offsets": [[2, 4], [4, 8]],
    "hyperparameters": {"input_chunkup": 2},
}
APPENDIX = """{
  // how GPUs of a node talk
  "intranode_sketch": {"strategy": "switch", "switches": [[0, 1, 2, 3]],
                       "switch_hyperedge_strategy": ["uc-max"]},
  /* between nodes: // is no comment in "a // text" */
  "internode_sketch": {"strategy": "relay", "internode_conn": {"1": [0], "3": [2]},
     "beta_split": {"1": 1, "3": 2.5}, "chunk_to_relay_map": [2, 1]},
  "symmetry_offsets": [[2, 4], [4, 8]], // rotations
  "hyperparameters": {"input_chunkup": 2, "input_size": "4M"}
}"""


def test_the_format_of_published_files() -> None:
    sketch = parse_sketch(json.dumps(REFERENCE))
    assert sketch.nodes == 2
    assert sketch.intranode.strategy is Strategy.SWITCH
    assert sketch.intranode.policies == (Policy.MIN,)
    assert sketch.internode is not None
    assert sketch.internode.connections == {1: (0,), 3: (2,)}
    assert sketch.internode.senders == {1: (0, 1), 3: (2, 3)}
    assert sketch.internode.enforce_ordering
    assert sketch.symmetries == (Symmetry(offset=2, group=4), Symmetry(offset=4, group=8))
    assert (sketch.chunkup, sketch.input_bytes) == (2, None)


def test_the_format_of_the_appendix_with_comments() -> None:
    sketch = parse_sketch(APPENDIX)
    assert sketch.internode is not None
    assert sketch.internode.beta_split == {1: 1.0, 3: 2.5}
    assert sketch.internode.relay == RelayMap(group=2, place=1)
    assert [sketch.internode.relay.sender(gpu) for gpu in range(4)] == [1, 1, 3, 3]
    assert sketch.input_bytes == 4_000_000


@pytest.mark.parametrize("word", ["fully-connected", "direct-map"])
def test_connections_by_word(word: str) -> None:
    text = json.dumps({"nnodes": 2, "intranode_sketch": {"strategy": "none"},
                       "internode_sketch": {"internode_conn": word}})  # fmt: skip
    sketch = parse_sketch(text)
    assert sketch.internode is not None
    assert sketch.internode.connections == word


@pytest.mark.parametrize(
    ("size", "found"),
    [("1K", 1000), ("64k", 64_000), ("2MB", 2_000_000), ("4MiB", 4 << 20), ("1.5G", 1_500_000_000),
     (123, 123), ("77", 77)],
)  # fmt: skip
def test_sizes_have_units(size: object, found: int) -> None:
    row = {"intranode_sketch": {"strategy": "none"}, "hyperparameters": {"input_size": size}}
    assert parse_sketch(json.dumps(row)).input_bytes == found


def changed(path: str, value: object) -> str:
    row = json.loads(json.dumps(REFERENCE))
    *way, last = path.split(".")
    at = row
    for name in way:
        at = at[name]
    at[last] = value
    return json.dumps(row)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("nnodes", 0, "field 'nnodes': 0 needs to be 1"),
        ("nnodes", "two", "field 'nnodes': 'two' is not an integer"),
        ("intranode_sketch.strategy", "ring", "'intranode_sketch.strategy': is 'ring', needs one"),
        ("intranode_sketch.switches", [[0, 0]], "repeats a GPU"),
        ("intranode_sketch.switches", [], "'intranode_sketch.switches' is missing or empty"),
        ("intranode_sketch.switch_hyperedge_strategy", ["uc-mid"], "needs one of uc-max, uc-min"),
        ("intranode_sketch.switch_hyperedge_strategy", [], "has 0 entries, needs one for each"),
        ("internode_sketch.internode_conn", "all", "needs one of fully-connected, direct-map"),
        ("internode_sketch.internode_conn", {"x": [1]}, "key 'x' is no GPU"),
        ("internode_sketch.gpus_to_sender_rev_map", {"1": [0], "3": [0]}, "GPU 0 to senders 1"),
        ("internode_sketch.chunk_to_relay_map", [2, 1], "define the same: give one"),
        ("internode_sketch.beta_split", {"1": 0}, "0.0 needs to be 0.001 to"),
        ("internode_sketch.enforce_ordering", 1, "is not true or false"),
        ("internode_sketch.speed", 1, "field 'internode_sketch.speed' is unknown"),
        ("symmetry_offsets", [[2]], "needs two numbers"),
        ("symmetry_offsets", [[4, 4]], "offset 4 needs to be less than the group size 4"),
        ("hyperparameters.input_size", "big", "'hyperparameters.input_size': 'big' needs a size"),
        ("automorphism", [0, 0], "needs each of 0 to 1 once"),
        ("partition", [[0]], "field 'automorphism' is missing"),
    ],
)  # fmt: skip
def test_errors_name_file_and_field(path: str, value: object, says: str) -> None:
    with pytest.raises(SketchError, match=r"^my\.json: ") as caught:
        parse_sketch(changed(path, value), source="my.json")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 20_000, '"x'])
def test_what_is_no_sketch_is_refused(text: str) -> None:
    with pytest.raises(SketchError, match="^sketch: "):
        parse_sketch(text)


def test_a_partition_must_be_kept_by_its_automorphism() -> None:
    row = {"intranode_sketch": {"strategy": "none"}, "automorphism": [1, 0, 2, 3]}
    with pytest.raises(SketchError, match=r"has part \[0, 2\], whose image is no part"):
        parse_sketch(json.dumps({**row, "partition": [[0, 2], [1, 3]]}))
    sketch = parse_sketch(json.dumps({**row, "partition": [[0, 1], [2, 3]]}))
    assert sketch.symmetries[0].permutation(4) == (1, 0, 2, 3)
    assert sketch.symmetries[0].part_of(4) == (0, 0, 1, 1)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SketchError, match=r"missing\.json: cannot be read"):
        load_sketch(tmp_path / "missing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SketchError, match=r"binary\.json: byte 0 is no UTF-8"):
        load_sketch(tmp_path / "binary.json")
    (tmp_path / "mine.json").write_text(APPENDIX)
    assert load_sketch(tmp_path / "mine.json").name == "mine"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
PATHS = [
    *REFERENCE,
    *(f"{table}.{key}" for table in REFERENCE if isinstance(REFERENCE[table], dict)
      for key in REFERENCE[table]),
    "internode_sketch.beta_split", "automorphism", "partition", "symmetries", "name",
    "hyperparameters.input_size",
]  # fmt: skip


@given(st.sampled_from(PATHS), json_values)
@settings(max_examples=300)
def test_any_value_in_any_field_parses_or_is_refused(path: str, value: object) -> None:
    try:
        parse_sketch(changed(path, value), source="my.json")
    except SketchError as error:
        assert str(error).startswith("my.json: ")


@given(st.text(alphabet='{}[]":,/*\n0123 anodesketch_\\', max_size=80))
@settings(max_examples=200)
def test_any_text_parses_or_is_refused(text: str) -> None:
    with suppress(SketchError):
        parse_sketch(text)


@given(st.integers(0, len(APPENDIX)), st.integers(0, 20), st.text(max_size=3))
def test_a_damaged_file_parses_or_is_refused(at: int, cut: int, put: str) -> None:
    with suppress(SketchError):
        parse_sketch(APPENDIX[:at] + put + APPENDIX[at + cut :])
