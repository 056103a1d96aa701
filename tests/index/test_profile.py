"""The index profile: kept as it is, refused where it is damaged, described in the documentation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.index.measure.survey import survey_trace
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.profile import ENCODING_TABLES, FEATURES, SAMPLE_TABLES, IndexProfile

DOCS = Path(__file__).parent.parent.parent / "docs" / "index.md"


@pytest.fixture(scope="module")
def profile() -> IndexProfile:
    keys = np.random.default_rng(2).integers(-(2**40), 2**40, 5000)
    return survey_trace(workload_trace(keys, Workload(erases=0.1)), provenance={"source": "a test"})


def test_a_profile_is_saved_and_loaded(profile: IndexProfile, tmp_path: Path) -> None:
    profile.save(tmp_path / "profile")
    found = IndexProfile.load(tmp_path / "profile")
    assert found.digest == profile.digest
    assert found.kind == found.sample.kind == "int64"
    assert np.array_equal(found.encoding.image, profile.encoding.image)
    assert np.array_equal(found.sample.keys, profile.sample.keys)
    assert found.encoding.features == profile.encoding.features
    assert found.provenance["source"] == "a test"


def test_every_field_is_documented(profile: IndexProfile) -> None:
    text = DOCS.read_text()
    columns = [name for _, table in ENCODING_TABLES.values() for name in table]
    columns += [name for table in SAMPLE_TABLES.values() for name in table]
    for name in (
        *columns,
        *ENCODING_TABLES,
        *SAMPLE_TABLES,
        *FEATURES,
        *profile.to_artifact().head,
    ):
        assert f"`{name}`" in text, name


def changed(artifact: Artifact, table: str, column: str, values: Any) -> Artifact:
    return replace(
        artifact,
        tables={**artifact.tables, table: {**artifact.tables[table], column: values}},
    )


def test_damaged_profiles_are_refused(profile: IndexProfile) -> None:
    whole = profile.to_artifact()
    gaps = whole.tables["gaps"]["share"]
    operations = whole.tables["operations"]["operation"]
    for artifact, message in (
        (replace(whole, head={**whole.head, "speed": 1}), "a.file: field 'speed' is unknown"),
        (replace(whole, head={**whole.head, "loaded": -1}), "field 'loaded' is -1, needs 0 to"),
        (replace(whole, head={**whole.head, "features": {}}), "'features.find_share' is missing"),
        (replace(whole, head={**whole.head, "sample_keys": "x"}), "a.file: kind is 'x', needs one"),
        (changed(whole, "gaps", "share", gaps[:-1]), "column 'gaps.share' has 63 rows, needs 64"),
        (changed(whole, "gaps", "share", gaps * np.nan), "'gaps.share' has values that are not fi"),
        (changed(whole, "gaps", "other", gaps), "column 'gaps.other' is unknown"),
        (
            changed(whole, "operations", "operation", operations + np.uint8(4)),
            "a.file: operations: number 0 is",
        ),
        (
            changed(whole, "loaded", "key", whole.tables["loaded"]["key"].astype(np.int64)),
            "column 'loaded.key' has type int64, needs uint64",
        ),
    ):
        with pytest.raises(ArtifactError, match=message):
            IndexProfile.from_artifact(artifact, "a.file")
