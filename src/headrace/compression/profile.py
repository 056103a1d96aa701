"""The compression profile: what a step of one training job computes, and what codecs cost there.

The values are few, so all are in the artifact's head, and the same fields in a plain JSON file are
read too: measurements of others need no headrace (docs/compression.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from itertools import pairwise
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import PlainArtifactValue
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.errors import ArtifactError
from headrace.facades import public_value
from headrace.fields import Field
from headrace.units import duration, size

MEASURED, LITERATURE = "measured", "literature"

_MOST_US = 86_400e6
"""A day: a longer step is a mistake in units."""
_MOST_ELEMENTS = 1 << 42
_MOST_RANKS_PER_HOST = 1024
_MOST_ELEMENT_BYTES = 8


@public_value("headrace.compression")
class ModelTensor:
    """A parameter of the model: its name and shape.

    Attributes
    ----------
    element_bytes : of its gradient: 4 in float32, 2 in bfloat16 and float16.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int = 4

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradient."""
        return self.element_bytes * self.elements


@public_value("headrace.compression")
class GradientBucket:
    """Gradients that are exchanged together, as DDP forms them.

    Attributes
    ----------
    tensors : how many of the profile's parameters, following those of the bucket before.
    ready_us : when the last of them is computed, after the backward pass began, without any
        communication beside it.
    """

    tensors: int
    ready_us: float


@public_value("headrace.compression")
class CodecTiming:
    """Time of a codec on one rank while all ranks of its host encode at once.

    Attributes
    ----------
    elements : of the vector, ascending; for a matrix codec the elements of this model's matrices
        (or of some of them) together.
    encode_us : from a gradient of so many elements to this rank's payload; for codecs with two
        exchanges (PowerSGD), all that is computed before the last one begins.
    decode_us : of one rank's payload of so many elements, added to the result; for associative
        codecs of the summed payload.
    """

    elements: tuple[int, ...]
    encode_us: tuple[float, ...]
    decode_us: tuple[float, ...]

    def encoding_us(self, elements: float) -> float:
        """Return the time to encode so many elements, see `_interpolated`."""
        return _interpolated(elements, self.elements, self.encode_us)

    def decoding_us(self, elements: float) -> float:
        """Return the time to decode a payload of so many elements, see `_interpolated`."""
        return _interpolated(elements, self.elements, self.decode_us)


@public_value("headrace.compression", repr=False)
class CompressionProfile(
    PlainArtifactValue, kind="compression-profile", schema=1, command="headrace compression measure"
):
    """Times of a training step without communication, and of codecs, on one kind of device.

    Attributes
    ----------
    model, device : names, for people.
    batch : examples of one rank in a step.
    tensors : the parameters in the order in which the backward pass computes their gradients.
    buckets : of consecutive parameters; all together have every parameter once.
    forward_us, backward_us : of one rank, without communication; `other_us`: what else is in a
        step (the optimizer, zeroed gradients).
    gamma : the backward pass takes so many times longer while communication runs beside it.
    contention : the backward pass is delayed by so many us for each us that a codec computes
        beside it: 1 where both need the whole device, 0 where the codec has a processor of its own,
        above 1 where both slow each other.
    ranks_per_host : that encoded at once while codecs were timed.
    memory_bytes : of the device; 0: not known. `used_bytes`: the step's peak with gradients and
        without compression.
    codecs : by the specification's text.
    provenance : "kind" is "measured" or "literature", "source" says where and how; "derived", if
        any, has by codec how its times follow from others'; other fields are free.

    Raises
    ------
    ArtifactError : naming the field, what was found and what is needed.
    """

    PLAIN_FIELDS = frozenset({"model", "tensors", "buckets"})

    model: str
    device: str
    batch: int
    tensors: tuple[ModelTensor, ...]
    buckets: tuple[GradientBucket, ...]
    forward_us: float
    backward_us: float
    other_us: float = 0.0
    gamma: float = 1.0
    contention: float = 1.0
    ranks_per_host: int = 1
    memory_bytes: int = 0
    used_bytes: int = 0
    codecs: Mapping[str, CodecTiming] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            parts = _profile_parts(self.to_head(), self.provenance, "compression profile")
        except (TypeError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"compression profile: {error}") from error
        for name, value in parts.items():  # of the types that a file's are read in
            object.__setattr__(self, name, value)

    @property
    def description(self) -> str:
        """The model, device and batch, and the main figures of the step."""
        step_us = self.forward_us + self.backward_us + self.other_us
        return (
            f"{self.model} on {self.device}, batch {self.batch}, {size(self.gradient_bytes)} of "
            f"gradients, step {duration(step_us)}, {len(self.codecs)} codecs timed"
        )

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(tensor.gradient_bytes for tensor in self.tensors)

    @property
    def derived(self) -> Mapping[str, str]:
        """Codecs whose times were not measured but follow from others', and how."""
        return self.provenance.get("derived", {})

    def bucket_tensors(self) -> tuple[tuple[ModelTensor, ...], ...]:
        """Return the parameters of each bucket."""
        ends = np.cumsum([bucket.tensors for bucket in self.buckets]).tolist()
        return tuple(
            self.tensors[end - bucket.tensors : end]
            for end, bucket in zip(ends, self.buckets, strict=True)
        )

    def to_head(self) -> dict[str, Any]:
        """Return the fields as JSON, without the provenance."""
        simple = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("tensors", "buckets", "codecs", "provenance")
        }
        return {
            **simple,
            "tensors": [_tensor_row(tensor) for tensor in self.tensors],
            "buckets": [[bucket.tensors, bucket.ready_us] for bucket in self.buckets],
            "codecs": {
                name: {key: list(column) for key, column in asdict(timing).items()}
                for name, timing in self.codecs.items()
            },
        }

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        return self.to_head(), {}

    @classmethod
    def from_artifact(
        cls, artifact: Artifact, source: str = "compression profile"
    ) -> "CompressionProfile":
        """Rebuild a profile.

        Raises
        ------
        ArtifactError : naming the field, what was found and what is needed.
        """
        return cls.from_document(artifact.head, artifact.provenance, source)

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], provenance: Mapping[str, Any], source: str
    ) -> "CompressionProfile":
        """Rebuild a profile from its fields; see `from_artifact`."""
        return cls(**_profile_parts(document, provenance, source))


def _interpolated(at: float, elements: Sequence[int], times: Sequence[float]) -> float:
    """Return the time at a size: linear between the sizes measured, in proportion beyond the last.

    Below the first size it follows the line through the first two, but not below half of the
    proportional part, so that it stays positive; with one size it is proportional.
    """
    if at <= 0:
        return 0.0
    if at >= elements[-1]:
        return times[-1] * at / elements[-1]
    if at >= elements[0]:
        return float(np.interp(at, elements, times))
    proportional = times[0] * at / elements[0]
    if len(elements) == 1:
        return proportional
    slope = (times[1] - times[0]) / (elements[1] - elements[0])
    return max(min(times[0] - slope * (elements[0] - at), times[0]), proportional / 2)


def _profile_parts(head: Any, provenance: Any, source: str) -> dict[str, Any]:
    """Return the checked fields of a profile, by the names of its dataclass."""
    document = Field(head, source, ArtifactError)
    document.allow(
        *(name for name in CompressionProfile.__dataclass_fields__ if name != "provenance")
    )
    tensors = tuple(_tensor(row) for row in document.at("tensors").items())
    counts = Counter(tensor.name for tensor in tensors)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise document.at("tensors").fail(f"names {fields.shown(twice[0])} twice, needs it once")
    parts: dict[str, Any] = {
        "model": document.at("model").text(),
        "device": document.at("device").text(),
        "batch": document.at("batch").integer(1, 1 << 31),
        "tensors": tensors,
        "forward_us": _time(document.at("forward_us")),
        "backward_us": _time(document.at("backward_us")),
        "other_us": _time(document.at("other_us", default=0.0)),
        "gamma": _between(document.at("gamma", default=1.0), 1.0, 100.0),
        "contention": _between(document.at("contention", default=1.0), 0.0, 100.0),
        "ranks_per_host": document.at("ranks_per_host", default=1).integer(1, _MOST_RANKS_PER_HOST),
        "memory_bytes": document.at("memory_bytes", default=0).integer(0, 1 << 50),
        "used_bytes": document.at("used_bytes", default=0).integer(0, 1 << 50),
    }
    parts["buckets"] = _buckets(document.at("buckets"), len(tensors), parts["backward_us"])
    timings = document.at("codecs", default={})
    parts["codecs"] = {name: _timing(timings, name) for name in timings.read(fields.table)}
    origin = Field(provenance, f"{source}: provenance", ArtifactError)
    kind = origin.at("kind").text()
    if kind not in (MEASURED, LITERATURE):
        raise origin.at("kind").wrong(f"'{MEASURED}' or '{LITERATURE}'")
    origin.at("source").text()
    derived = origin.at("derived", default={})
    for name in derived.read(fields.table):
        derived.at(name).text()
    return {**parts, "provenance": provenance}


def _tensor_row(tensor: ModelTensor) -> list[Any]:
    """Return a parameter's row, which names the bytes of other elements than float32's."""
    row: list[Any] = [tensor.name, list(tensor.shape)]
    return row if tensor.element_bytes == 4 else [*row, tensor.element_bytes]


def _tensor(row: Field) -> ModelTensor:
    name, shape = row.at(0).text(), row.at(1).items()
    sizes = tuple(size.integer(1, _MOST_ELEMENTS) for size in shape)
    if math.prod(sizes) > _MOST_ELEMENTS:
        raise row.wrong(f"at most {_MOST_ELEMENTS} elements")
    return ModelTensor(
        name=name, shape=sizes, element_bytes=row.at(2, default=4).integer(1, _MOST_ELEMENT_BYTES)
    )


def _buckets(rows: Field, tensors: int, backward_us: float) -> tuple[GradientBucket, ...]:
    buckets = tuple(
        GradientBucket(tensors=row.at(0).integer(1, tensors), ready_us=_time(row.at(1)))
        for row in rows.items()
    )
    bucketed = sum(bucket.tensors for bucket in buckets)
    if not buckets or bucketed != tensors:
        raise rows.fail(
            f"hold {bucketed} parameters, needs all {tensors} of 'tensors', at least one"
        )
    last = 0.0
    for index, bucket in enumerate(buckets):
        if not last <= bucket.ready_us <= backward_us:
            raise rows.at(index, 1).wrong(f"{last:g} to {backward_us:g} (backward_us), ascending")
        last = bucket.ready_us
    return buckets


def _timing(timings: Field, name: str) -> CodecTiming:
    try:
        canonical = str(CodecSpec.parse(name))
    except CompressionError as error:
        raise timings.fail(f"names an unknown codec: {error}") from error
    row = timings.at(name)
    if canonical != name:
        raise row.fail(f"needs the name {canonical!r}")
    row.allow(*CodecTiming.__dataclass_fields__)
    elements = tuple(size.integer(1, _MOST_ELEMENTS) for size in row.at("elements").items())
    if not elements or any(b <= a for a, b in pairwise(elements)):
        raise row.at("elements").wrong("sizes, ascending, at least one")
    columns: dict[str, tuple[float, ...]] = {}
    for column in ("encode_us", "decode_us"):
        columns[column] = tuple(_time(time) for time in row.at(column).items())
        if len(columns[column]) != len(elements):
            raise row.at(column).wrong(f"{len(elements)} times, one for each of 'elements'")
    return CodecTiming(elements=elements, **columns)


def _time(value: Field) -> float:
    return _between(value, 0.0, _MOST_US)


def _between(value: Field, low: float, high: float) -> float:
    number = value.read(fields.number)
    if not low <= number <= high:
        raise value.wrong(f"{low:g} to {high:g}")
    return number
