"""Values that artifacts store: bytes, digests and plain JSON from kind, schema and content."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.artifact as artifact_io
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, PlainArtifactValue, stored_value
from headrace.errors import ArtifactError
from headrace.kinds import kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(ArtifactValue, kind="test-lengths", schema=3, command="headrace lengths measure"):
    unit: str
    lengths: tuple[int, ...]

    @property
    def description(self) -> str:
        return f"{len(self.lengths)} lengths in {self.unit}"

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        return {"unit": self.unit}, {"rows": {"length": np.array(self.lengths, np.int64)}}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "lengths") -> "Lengths":
        rows = artifact.numbers("rows", ["length"], source)["length"]
        return cls(unit=artifact.head["unit"], lengths=tuple(rows.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(PlainArtifactValue, kind="test-label", command="headrace label"):
    PLAIN_FIELDS = frozenset({"label"})

    label: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return self.label

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        return {"label": self.label}, {}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "label") -> "Label":
        return cls.from_document(artifact.head, artifact.provenance, source)

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], provenance: Mapping[str, Any], source: str
    ) -> "Label":
        if not document["label"]:
            raise ArtifactError(f"{source}: field 'label' is empty")
        return cls(label=document["label"], provenance=provenance)


LENGTHS = Lengths(unit="mm", lengths=(3, 1))


def test_files_and_bytes_give_the_value_back(tmp_path: Path) -> None:
    LENGTHS.save(tmp_path / "lengths")
    assert Lengths.load(tmp_path / "lengths") == LENGTHS
    assert Lengths.from_bytes((tmp_path / "lengths").read_bytes()) == LENGTHS


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    LENGTHS.save(tmp_path / "lengths", {"source": "a ruler"})
    artifact = artifact_io.load(tmp_path / "lengths")
    assert (artifact.kind, artifact.schema) == ("test-lengths", 3)
    assert artifact.provenance == {"source": "a ruler"}
    assert artifact.digest == LENGTHS.digest != Lengths(unit="m", lengths=(3, 1)).digest


def test_provenance_is_the_values_own_unless_it_is_passed() -> None:
    label = Label(label="a", provenance={"source": "a form"})
    assert label.to_artifact().provenance == {"source": "a form"}
    assert label.to_artifact({}).provenance == {}
    assert LENGTHS.to_artifact().provenance == {}


def test_files_of_another_kind_or_schema_are_refused(tmp_path: Path) -> None:
    Label(label="a").save(tmp_path / "label")
    with pytest.raises(ArtifactError, match="needs 'test-lengths'; make one with headrace lengths"):
        Lengths.load(tmp_path / "label")
    later = Artifact(kind=Lengths.KIND, schema=4, head={}).to_bytes()
    with pytest.raises(ArtifactError, match="^sent: field 'schema' is 4, needs 3"):
        Lengths.from_bytes(later, "sent")


def test_plain_json_is_read_and_its_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "label.json"
    path.write_text(json.dumps({"label": "a", "provenance": {"source": "a form"}}))
    assert Label.load(path) == Label(label="a", provenance={"source": "a form"})
    path.write_text(json.dumps({"label": "", "provenance": {}}))
    with pytest.raises(ArtifactError, match=r"label\.json: field 'label' is empty"):
        Label.load(path)


def test_a_registration_follows_from_the_class(tmp_path: Path) -> None:
    kind = kind_of(Lengths, summary="lengths", documentation="index.md")
    assert (kind.name, kind.schema, kind.plain, kind.page) == ("test-lengths", 3, None, None)
    assert kind.load(LENGTHS.to_artifact(), "lengths") == LENGTHS

    plain = kind_of(Label, summary="a label", documentation="index.md")
    path = tmp_path / "label.json"
    path.write_text(json.dumps({"label": "a", "provenance": {}}))
    assert plain.plain_fields == {"label"}
    assert plain.plain is not None
    assert plain.plain(path).digest == Label(label="a").digest


@stored_value("headrace.topology", ArtifactError)
class Share:
    part: float
    of: int = 1

    def __post_init__(self) -> None:
        assert isinstance(self.part, float)  # numbers have their types before they are checked
        if self.part > self.of:
            raise ArtifactError(f"part is {self.part}, needs at most {self.of}")


def test_a_stored_value_converts_its_numbers_and_then_checks_them() -> None:
    half: Any = np.float32(0.5)
    share = Share(part=half)
    assert (share, type(share.part)) == (Share(part=0.5), float)
    with pytest.raises(ArtifactError, match=r"part is 2.0, needs at most 1"):
        Share(part=2)
    with pytest.raises(ArtifactError, match="part: 'half' is not a number"):
        Share(part="half")  # pyright: ignore[reportArgumentType]


def test_a_stored_value_is_frozen_and_names_its_facade() -> None:
    assert Share.__module__ == "headrace.topology"
    with pytest.raises(AttributeError):
        Share(part=0.5).part = 0.25  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        object.__setattr__(Share(part=0.5), "unit", "GiB")


def test_a_file_that_is_neither_an_artifact_nor_json_is_an_error_with_the_remedy(
    tmp_path: Path,
) -> None:
    path = tmp_path / "label"
    for content in (b"", b"hello", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="label: .*; make one with headrace label$"):
            Label.load(path)
