"""The registry of artifact kinds: complete, and equal to the files that are written."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace.artifact as artifact_io
from headrace import kinds as registry
from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.kinds import artifact_kinds, kind_of

DOCS = Path(__file__).parent.parent / "docs"
WRITTEN = sorted((Path(__file__).parent / "golden" / "written").glob("*.headrace"))


def test_every_kind_is_written_with_the_registered_schema_and_loads() -> None:
    found = [(artifact_io.load(path), path) for path in WRITTEN]
    assert {artifact.kind for artifact, _ in found} == set(artifact_kinds())
    for artifact, path in found:
        kind = artifact_kinds()[artifact.kind]
        assert artifact.schema == kind.schema, path
        assert kind.load(artifact, str(path)) is not None
        assert (DOCS / kind.documentation).is_file(), kind.name


def test_a_verb_without_an_entry_names_the_kinds_that_have_one() -> None:
    with pytest.raises(ArtifactError, match="a.file: field 'kind' is 'topology', .* plan-book"):
        kind_of(Artifact(kind="topology", schema=1, head={}), "a.file", "verify")
    with pytest.raises(ArtifactError, match="field 'kind' is 'other', pages exist for plan, "):
        kind_of(Artifact(kind="other", schema=1, head={}), "a.file", "page")


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        __name__="twice", KINDS=(artifact_kinds()["plan"], artifact_kinds()["plan"])
    )
    monkeypatch.setattr(registry, "_registering", lambda: [module])
    with pytest.raises(ValueError, match="'plan' stands twice"):
        artifact_kinds.__wrapped__()
