"""The registry of artifact kinds: complete, and equal to the files that are written."""

import tomllib
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest

import headrace.artifact as artifact_io
from headrace import kinds as registry
from headrace.artifact import Artifact
from headrace.cli.app import verbs
from headrace.errors import ArtifactError, InputError
from headrace.kinds import ArtifactKind, artifact_kinds, capabilities, foreign_formats, function_of

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


def test_a_file_of_another_kind_is_an_error_that_names_the_command_for_the_right_one() -> None:
    """Those of half the kinds named the kind alone."""
    commands = [f"headrace {path}" for path, _ in verbs()]
    without = {
        name
        for name, kind in artifact_kinds().items()
        if not any(command in kind.load.__self__.REMEDY for command in commands)
    }
    assert without == {"hardware-probes", "program"}  # which no command makes


def test_keywords_of_the_package_name_every_capability() -> None:
    keywords = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["keywords"]
    by_capability = {
        "attention": "key-value cache",
        "collectives": "collectives",
        "compression": "gradient compression",
        "embeddings": "embedding tables",
        "index": "learned index",
        "memory": "memory budget",
    }
    assert list(by_capability) == capabilities(), "a capability needs a keyword in pyproject.toml"
    assert {*by_capability.values()} <= {*keywords}


def test_every_deferred_function_exists() -> None:
    entries = (*artifact_kinds().values(), *foreign_formats())
    values = [getattr(entry, each.name) for entry in entries for each in fields(entry)]
    names = [value.args[0] for value in values if isinstance(value, partial)]
    assert len(names) > len(entries)
    for name in names:
        assert callable(resolve_name(name)), name


def test_errors_of_loading_name_the_source() -> None:
    for kind in artifact_kinds().values():
        empty = Artifact(kind=kind.name, schema=kind.schema, head={})
        with pytest.raises(InputError, match=r"^a\.file"):
            kind.load(empty, "a.file")


def test_a_verb_without_an_entry_names_the_kinds_that_have_one() -> None:
    def found(kind: str, entry: Callable[[ArtifactKind], object]) -> object:
        return function_of(Artifact(kind=kind, schema=1, head={}), "a.file", entry, "needs {}")

    with pytest.raises(ArtifactError, match="a.file: field 'kind' is 'topology', .* plan-book"):
        found("topology", lambda kind: kind.verify)
    with pytest.raises(ArtifactError, match="field 'kind' is 'other', needs .*, profile$"):
        found("other", lambda kind: kind.page)
    assert found("plan", lambda kind: kind.verify) is artifact_kinds()["plan"].verify


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        __name__="twice", KINDS=(artifact_kinds()["plan"], artifact_kinds()["plan"])
    )
    monkeypatch.setattr(registry, "_registering", lambda: [module])
    with pytest.raises(ValueError, match="'plan' stands twice"):
        artifact_kinds.__wrapped__()
