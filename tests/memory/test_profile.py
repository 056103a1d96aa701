"""The memory profile: kept as it is, read from plain JSON, refused where it is impossible."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.memory.graph import Graph, Implementation, Operator
from headrace.memory.profile import TABLES, EagerStep, MemoryProfile, ModelInput
from headrace.memory.report.tables import step_tables
from tests.memory.graphs import chain, random_graph

DOCS = Path(__file__).parent.parent.parent / "docs" / "memory.md"


def profile_of(graph: Graph) -> MemoryProfile:
    return MemoryProfile(
        graph=graph,
        model="chain",
        model_digest="c0ffee",
        device="a CPU",
        torch="2.15.0",
        inputs=(ModelInput(name="x", shape=(8, 4), dtype="float32"),),
        provenance={"kind": "measured", "source": "a test"},
    )


def test_a_profile_is_saved_and_loaded(tmp_path: Path) -> None:
    profile = profile_of(chain(4, resident=3))
    profile.save(tmp_path / "profile")
    found = MemoryProfile.load(tmp_path / "profile")
    assert found == profile
    assert found.digest == profile.digest
    assert len(list(step_tables(found, everything=False))) == 2
    assert "eager" not in profile.to_artifact().head  # as in files from before it was measured


def test_eagers_step_is_saved_and_loaded(tmp_path: Path) -> None:
    eager = EagerStep(peak_bytes=1 << 20, time_us=12.5)
    profile = replace(profile_of(chain(4)), eager=eager)
    profile.save(tmp_path / "profile")
    assert MemoryProfile.load(tmp_path / "profile") == profile
    for wrong, message in (
        ({"peak_bytes": -1, "time_us": 1.0}, "'eager.peak_bytes' is -1, needs 0 to"),
        ({"peak_bytes": 1, "time_us": 0.0}, "'eager.time_us' is 0.0, needs more than 0"),
        ({"peak_bytes": 1}, "'eager.time_us' is missing"),
        ({"peak_bytes": 1, "time_us": 1.0, "n": 1}, "'eager.n' is unknown"),
    ):
        document = {**profile.to_document(), "eager": wrong}
        with pytest.raises(ArtifactError, match=message):
            MemoryProfile.from_document(document, profile.provenance, "a file")


@given(st.randoms(use_true_random=False))
def test_any_graph_keeps_its_value(random: Random) -> None:
    profile = profile_of(random_graph(random))
    assert MemoryProfile.from_artifact(profile.to_artifact()) == profile


def test_the_example_of_the_documentation_is_a_profile(tmp_path: Path) -> None:
    example = re.search(r"```json\n(\{\n.*?)```", DOCS.read_text(), re.DOTALL)
    assert example
    (tmp_path / "profile.json").write_text(example[1])
    found = MemoryProfile.load(tmp_path / "profile.json")
    assert found.graph.resident_bytes == 1536
    written = {**found.to_document(), "provenance": dict(found.provenance)}
    assert json.loads(example[1]) == written


def test_every_field_is_documented() -> None:
    text = DOCS.read_text()
    columns = {column for table in TABLES.values() for column in table}
    fields = {*MemoryProfile.__dataclass_fields__, *Graph.__dataclass_fields__} - {"graph"}
    own = {*Operator.__dataclass_fields__, *Implementation.__dataclass_fields__}
    for name in columns | fields | own:
        assert f"`{name}`" in text, name


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


WAY = ("operators", 1, "implementations", 0)
WRONG = [
    (put("model", value=3), "field 'model': 3 is not a text"),
    (put("speed", value=3), "field 'speed' is unknown, needs one of model"),
    (put("provenance", "kind", value="felt"), "'kind' is 'felt', needs 'measured' or 'roofline'"),
    (put("inputs", 0, 1, 0, value=-1), r"'inputs\[0\]\[1\]\[0\]' is -1, needs 0 to"),
    (put("storages", 0, "nbytes", value=0.5), r"'storages\[0\].nbytes'.* 0.5 is not an integer"),
    (put("forward_count", value=7), "'forward_count' is 7, needs 0 to 6"),
    (put("outputs", value=[9]), r"'outputs\[0\]' is 9, needs 0 to 5"),
    (put("outputs", value=[3]), "'outputs' has storage 3, needs one that an operator of the forw"),
    (put("results", value=[0, 0]), "'results' is .*, needs every storage once"),
    (put("operators", 3, "again", value=True), r"'operators\[3\].again' is True, needs false for"),
    (put("operators", 0, "implementations", value=[]), r"implementations' is \[\], needs one at"),
    (put(*WAY, "time_us", value=-1), r"\[1\].implementations\[0\].time_us' is -1, needs 0 to"),
    (put(*WAY, "reads", value=[2]), r"reads\[0\]' is 2, needs a storage that an operator before"),
    (put(*WAY, "creates", value=[0]), r"'operators\[1\]' creates storage 0, which operators\[0\]"),
    (put(*WAY, "overwrites", value=2), "overwrites' is 2, needs one of 'reads', and something"),
    (
        put(*WAY, "overwrites", value=0),
        r"implementations\[0\]' overwrites in the forward pass, needs",
    ),
    (put("resident", "inputs", value=-4), "'resident.inputs' is -4, needs 0 to"),
]


def test_impossible_fields_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for change, message in WRONG:
        profile = profile_of(chain(3))
        document: dict[str, Any] = {
            **profile.to_document(),
            "provenance": dict(profile.provenance),
        }
        change(document)
        path.write_text(json.dumps(document))
        with pytest.raises(ArtifactError, match=message) as caught:
            MemoryProfile.load(path)
        assert str(path) in str(caught.value)


def test_rules_across_implementations() -> None:
    graph = chain(3)
    one = graph.operators[1].implementations[0]

    def with_ways(*ways: Implementation, **changes: Any) -> Graph:
        operators = list(graph.operators)
        operators[1] = replace(operators[1], implementations=ways)
        return replace(graph, operators=tuple(operators), **changes)

    profile_of(with_ways(one, replace(one, overwrites=0)))
    with pytest.raises(ArtifactError, match="which no first implementation before it leaves"):
        profile_of(with_ways(replace(one, creates=()), one))
    with pytest.raises(ArtifactError, match="which not all implementations of operators"):
        profile_of(with_ways(one, replace(one, creates=()), outputs=frozenset({1})))
    sizes = (replace(graph.storages[0], nbytes=11), *graph.storages[1:])
    with pytest.raises(ArtifactError, match="has 11 bytes, its memory becomes one of 10 bytes"):
        profile_of(with_ways(one, replace(one, overwrites=0), storages=sizes))


def changed(artifact: Artifact, table: str, column: str, values: Any) -> Artifact:
    columns = {**artifact.tables[table], column: np.array(values)}
    return replace(artifact, tables={**artifact.tables, table: columns})


def test_tables_that_do_not_fit_are_refused() -> None:
    artifact = profile_of(chain(2)).to_artifact()
    for table, column, values, message in (
        ("storages", "nbytes", [1], "'storages' has 4 names, its table 1 rows"),
        ("operators", "implementations", [1, 1, 1, 2], "'implementations' has 4 rows, its rows 3"),
        ("operators", "implementations", [1, 1, 1, 0], "has 4 rows, only 3 belong"),
        ("implementations", "reads", [-1, 1, 1, 1], "table 'uses' has .* rows, its rows 0"),
        ("uses", "storage", [0.5] * 7, "0.5 is not an integer"),
        ("uses", "other", [1] * 7, "column 'uses.other' is unknown"),
    ):
        with pytest.raises(ArtifactError, match=message):
            MemoryProfile.from_artifact(changed(artifact, table, column, values))
