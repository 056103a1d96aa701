"""The compression profile: kept as it is, read from plain JSON, refused where it is impossible."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.artifact import Artifact
from headrace.compression.cli.show import profile_bucket_rows
from headrace.compression.profile import (
    CodecTiming,
    CompressionProfile,
    GradientBucket,
    ModelTensor,
)
from headrace.errors import ArtifactError
from headrace.kinds import load_artifact

DOCS = Path(__file__).parent.parent.parent / "docs" / "compression.md"


def small() -> CompressionProfile:
    return CompressionProfile(
        model="mlp",
        device="cpu",
        batch=8,
        tensors=(
            ModelTensor(name="b", shape=(10, 64)),
            ModelTensor(name="a.bias", shape=(64,)),
            ModelTensor(name="a", shape=(64, 32)),
        ),
        buckets=(GradientBucket(tensors=1, ready_us=40.0), GradientBucket(tensors=2, ready_us=100)),
        forward_us=50.0,
        backward_us=100.0,
        codecs={
            "sign": CodecTiming(
                elements=(1000, 2000, 4000),
                encode_us=(20.0, 30.0, 70.0),
                decode_us=(1.0, 1.5, 3.0),
            ),
            "powersgd:2": CodecTiming(elements=(2688,), encode_us=(8.0,), decode_us=(4.0,)),
        },
        provenance={"kind": "measured", "source": "a test"},
    )


def test_a_profile_is_saved_and_loaded_and_counts_its_parts(tmp_path: Path) -> None:
    profile = small()
    profile.save(tmp_path / "profile")
    assert CompressionProfile.load(tmp_path / "profile") == profile
    assert profile.elements == 640 + 64 + 2048
    assert profile.gradient_bytes == 4 * profile.elements
    first, second = profile.bucket_tensors()
    assert [tensor.name for tensor in first + second] == ["b", "a.bias", "a"]
    assert len(first) == 1


def test_gradients_of_16_bits_are_counted_as_such(tmp_path: Path) -> None:
    profile = small()
    halves = replace(
        profile, tensors=tuple(replace(tensor, element_bytes=2) for tensor in profile.tensors)
    )
    halves.save(tmp_path / "profile")
    assert CompressionProfile.load(tmp_path / "profile") == halves
    assert halves.gradient_bytes == profile.gradient_bytes / 2
    assert [row[2] for row in profile_bucket_rows(halves)] == ["1.28 KB", "4.125 KiB"]
    assert profile.to_head()["tensors"][0] == ["b", [10, 64]]


def test_times_between_beyond_and_below_the_measured_sizes() -> None:
    sign = small().codecs["sign"]
    assert sign.encoding_us(1500) == 25.0
    assert sign.encoding_us(8000) == 140.0  # in proportion to the largest
    assert sign.encoding_us(500) == 15.0  # the line through the first two
    assert sign.decoding_us(0) == 0.0
    matrix = small().codecs["powersgd:2"]
    assert matrix.encoding_us(1344) == 4.0
    assert matrix.decoding_us(5376) == 8.0


def test_the_example_of_the_documentation_is_a_profile(tmp_path: Path) -> None:
    example = re.search(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example
    (tmp_path / "profile.json").write_text(example[1])
    found = CompressionProfile.load(tmp_path / "profile.json")
    assert found.elements == found.codecs["powersgd:4"].elements[0]
    assert found.provenance["kind"] == "measured"
    artifact = load_artifact(tmp_path / "profile.json")  # for show and report
    assert (artifact.kind, artifact.digest) == ("compression-profile", found.digest)
    (tmp_path / "other.json").write_text('{"model": "mlp"}')
    with pytest.raises(ArtifactError, match="is no headrace artifact, but JSON with"):
        load_artifact(tmp_path / "other.json")


def test_every_field_is_documented() -> None:
    text = DOCS.read_text()
    for name in (*CompressionProfile.__dataclass_fields__, *CodecTiming.__dataclass_fields__):
        assert f"`{name}`" in text, name


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


WRONG = [
    (put("batch", value=0), r"field 'batch' is 0, needs 1 to"),
    (put("gamma", value=0.5), "field 'gamma' is 0.5, needs 1 to 100"),
    (put("backward_us", value=-1.0), "field 'backward_us' is -1.0, needs 0 to"),
    (put("backward_us", value=90.0), r"field 'buckets\[1\]\[1\]' is 100.*, needs 40 to 90"),
    (put("backward_us", value=float("nan")), "field 'backward_us' is nan|not JSON"),
    (put("speed", value=1), "field 'speed' is unknown, needs one of model"),
    (put("tensors", 1, 0, value="a"), "'tensors' names 'a' twice"),
    (put("tensors", 1, 1, value=[0]), r"'tensors\[1\]\[1\]\[0\]' is 0, needs 1 to"),
    (put("tensors", 1, 1, value=[1 << 30, 1 << 30]), r"'tensors\[1\]' .* needs at most"),
    (put("buckets", 1, 0, value=1), "'buckets' hold 2 parameters, needs all 3"),
    (put("buckets", value=[]), "'buckets' hold 0 parameters"),
    (put("codecs", "none", value={}), r"'codecs.none.elements' is missing"),
    (put("codecs", "sign", "elements", value=[3, 2, 1]), "needs sizes, ascending"),
    (put("codecs", "sign", "encode_us", value=[1.0]), "needs 3 times, one for each"),
    (put("codecs", "sine", value={}), "names an unknown codec: codec is 'sine', needs one of none"),
    (put("codecs", "powersgd:2.0", value={}), "needs the name 'powersgd:2'"),
    (put("provenance", "kind", value="felt"), "'kind' is 'felt', needs 'measured' or 'literature'"),
    (put("provenance", "derived", value={"sign": 3}), "'derived.sign'.* 3 is not a text"),
    (put("provenance", value=3), "field 'provenance': 3 is not an object"),
]


def test_impossible_fields_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for change, message in WRONG:
        profile = small()
        document = {**profile.to_head(), "provenance": dict(profile.provenance)}
        change(document)
        path.write_text(json.dumps(document))
        with pytest.raises(ArtifactError, match=message) as found:
            CompressionProfile.load(path)
        assert str(found.value).startswith(str(path))


def test_files_of_other_kinds_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Artifact(kind="plan", schema=1, head={}, tables={"a": {"b": np.arange(300)}}).save(path)
    with pytest.raises(ArtifactError, match="'kind' is 'plan', needs 'compression-profile'; make"):
        CompressionProfile.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="file: byte 0 is no UTF-8"):
        CompressionProfile.load(path)
    path.write_text("[]")
    with pytest.raises(ArtifactError, match="file: .*is not an object"):
        CompressionProfile.load(path)


def test_a_constructed_profile_is_checked_too() -> None:
    with pytest.raises(ArtifactError, match="'buckets' hold 1 parameters, needs all 2"):
        CompressionProfile(
            model="m",
            device="cpu",
            batch=1,
            tensors=(ModelTensor(name="a", shape=(2,)), ModelTensor(name="b", shape=(2,))),
            buckets=(GradientBucket(tensors=1, ready_us=1),),
            forward_us=1.0,
            backward_us=1.0,
            provenance={"kind": "measured", "source": "a test"},
        )
