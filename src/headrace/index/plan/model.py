"""The throughput model (section 6.3.3): operations per second and bytes per key, in NumPy.

A convolutional embedding of the trace's image is joined with an embedding of the other encodings,
and with the sum of the embeddings of the configuration's buckets. Layers of neurons give the
probabilities of classes of throughput, spaced by their logarithm, and the bytes per key. What is
predicted is the mean over the classes: ranking needs less than a class. Several networks, trained
from different seeds, are averaged.

A few hundred traces leave such networks with large errors on key sets of other generators. So a
forest of regression trees, on the same inputs but the image, predicts each configuration of the
grid relative to the others, and what ranks is a mean of both. benchmarks/index/training trains
them, and prints what choices by each cost.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ArtifactError
from headrace.index.configuration import Configuration, read_configuration
from headrace.index.plan.forest import forest_output
from headrace.index.plan.inputs import coarse, configuration_input, image_input, vector_input
from headrace.index.profile import TraceEncoding

LEAST_LOG2, MOST_LOG2, PER_OCTAVE = 14, 27, 6
CLASSES = (MOST_LOG2 - LEAST_LOG2) * PER_OCTAVE
"""Classes of operations per second: from 2^14 to 2^27, six to a factor of two."""

CENTRES = LEAST_LOG2 + (np.arange(CLASSES) + 0.5) / PER_OCTAVE
"""log2 of the operations per second of each class."""

CONVOLUTIONS = ("first", "second", "third")
_STRIDE = 2
_TEXTS = ("provenance", "known")
_LEAVES, _LEAF_ROWS = "forest.value", "forest.value.rows"

LAST_LEVEL_CACHE = "last_level_cache_bytes"
"""Field of a provenance: of a model, of the machine that it was trained on; of a plan, of the
machine that it was made on."""

TRAINED_CACHE_BYTES = 32 << 20
"""Of models whose provenance does not state it: the one of the package is of a Zen 4 server, whose
cores share 32 MiB."""

FOREST_SHARE = 0.75
"""Weight of the forest's ranking beside the networks', whose error is larger."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Figures of configurations, in their order.

    Attributes
    ----------
    operations_per_s : expected, in the time of one thread.
    bytes_per_key : expected, at the end of the trace.
    """

    operations_per_s: np.ndarray
    bytes_per_key: np.ndarray


class ThroughputModel:
    """Trained networks, from the arrays of a file; see `load_model`.

    Parameters
    ----------
    arrays : "low", "high", "mean" and "scale" of the vectors, which are clipped to what was seen in
        training, for each network its layers ("0.first.weight", "0.first.bias", ...), and those of
        `headrace.index.plan.forest`, if there is one ("forest.feature", ...).
    provenance : data and training, for people.
    forest_configurations : configurations of the forest, in the order of its outputs.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        provenance: Mapping[str, Any],
        forest_configurations: Sequence[Configuration] = (),
    ) -> None:
        self._arrays = dict(arrays)
        self.provenance = provenance
        self._forest_places = {
            coarse(configuration): place
            for place, configuration in enumerate(forest_configurations)
        }
        self._networks = 1 + max(int(k.partition(".")[0]) for k in arrays if k[0].isdigit())

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the arrays."""
        sha = hashlib.sha256()
        for name, values in sorted(self._arrays.items()):
            sha.update(name.encode() + np.ascontiguousarray(values).tobytes())
        return sha.hexdigest()

    def predict(
        self, encoding: TraceEncoding, configurations: Sequence[Configuration]
    ) -> Prediction:
        """Return the figures of a trace's encoding with each configuration."""
        image, seen = image_input(encoding), vector_input(encoding)
        vector = seen.clip(self._arrays["low"], self._arrays["high"])
        vector = (vector - self._arrays["mean"]) / self._arrays["scale"]
        rows = configuration_input(configurations)
        outputs = [self._run(str(n), image, vector, rows) for n in range(self._networks)]
        classes = np.mean([probabilities for probabilities, _ in outputs], axis=0)
        mean = classes @ CENTRES
        sizes = np.mean([log2_bytes for _, log2_bytes in outputs], axis=0)
        if configurations and all(coarse(c) in self._forest_places for c in configurations):
            mean, sizes = self._with_forest(seen, configurations, mean, sizes)
        return Prediction(operations_per_s=2**mean, bytes_per_key=2**sizes)

    def _with_forest(
        self,
        vector: np.ndarray,
        configurations: Sequence[Configuration],
        mean: np.ndarray,
        sizes: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log2 of rates and of bytes, as means of the networks' and the forest's."""
        places = [self._forest_places[coarse(configuration)] for configuration in configurations]
        relative, forest_sizes = np.split(forest_output(self._arrays, vector), 2)
        relative = relative[places] - relative[places].mean()
        networks = mean - mean.mean()
        joined = mean.mean() + (1 - FOREST_SHARE) * networks + FOREST_SHARE * relative
        return joined, (sizes + forest_sizes[places]) / 2

    def _run(
        self, network: str, image: np.ndarray, vector: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes' probabilities (rows, classes) and log2 of the bytes (rows)."""

        def layer(name: str, values: np.ndarray) -> np.ndarray:
            prefix = f"{network}.{name}"
            return values @ self._arrays[f"{prefix}.weight"].T + self._arrays[f"{prefix}.bias"]

        for name in CONVOLUTIONS:
            weight = self._arrays[f"{network}.{name}.weight"]
            image = _relu(_convolve(image, weight, self._arrays[f"{network}.{name}.bias"]))
        pooled = np.concatenate([image.mean(axis=(1, 2)), image.max(axis=(1, 2))])
        trace = np.concatenate(
            [_relu(layer("image", pooled)), _relu(layer("keys", _relu(layer("vector", vector))))]
        )
        configurations = self._arrays[f"{network}.embedding.weight"][rows].sum(axis=1)
        joined = np.concatenate(
            [np.broadcast_to(trace, (len(rows), len(trace))), configurations], axis=1
        )
        hidden = _relu(layer("inner", _relu(layer("joined", joined))))
        return _softmax(layer("classes", hidden)), layer("bytes", hidden)[:, 0]


@cache
def shipped_model() -> ThroughputModel:
    """Return the model that is part of the package."""
    return load_model(Path(str(files("headrace.index.plan") / "model.npz")))


def load_model(path: Path) -> ThroughputModel:
    """Read a model that benchmarks/index/training has written.

    Raises
    ------
    ArtifactError : the file cannot be read, or is none.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            texts = {name: json.loads(file[name].tobytes()) for name in _TEXTS}
            stored = {name: file[name] for name in file if name not in _TEXTS}
        arrays = {name: rows.astype(np.float32) for name, rows in _repeated(stored).items()}
        forest_configurations = [read_configuration(head, str(path)) for head in texts["known"]]
        return ThroughputModel(arrays, texts["provenance"], forest_configurations)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{path}: is no throughput model: {error}") from error


def save_model(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    provenance: Mapping[str, Any],
    forest_configurations: Sequence[Configuration] = (),
) -> None:
    """Write a model; see `load_model`.

    Rows of the forest's leaves that are equal are written once: two thirds of a file's bytes.
    """
    texts = {
        "provenance": dict(provenance),
        "known": [configuration.to_head() for configuration in forest_configurations],
    }
    every: dict[str, Any] = _distinct(arrays)
    for name in _TEXTS:
        text = json.dumps(texts[name], sort_keys=True).encode()
        every[name] = np.frombuffer(text, dtype=np.uint8)
    np.savez_compressed(path, **every)


def _distinct(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays with every row of the leaves once, and the numbers of the leaves' rows."""
    stored = dict(arrays)
    if (values := stored.get(_LEAVES)) is not None:
        bits = np.ascontiguousarray(values).view(np.uint8)  # a NaN equals itself, and 0 not -0
        _, first, rows = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        stored[_LEAVES], stored[_LEAF_ROWS] = values[first], rows.ravel().astype(np.uint32)
    return stored


def _repeated(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that `_distinct` stored; others as they are.

    Raises
    ------
    ValueError : a leaf has a row that is not stored.
    """
    arrays = dict(stored)
    rows = arrays.pop(_LEAF_ROWS, None)
    if rows is not None:
        if rows.size and rows.max() >= len(arrays[_LEAVES]):
            raise ValueError(f"'{_LEAF_ROWS}' has {rows.max()}, needs less than the rows stored")
        arrays[_LEAVES] = arrays[_LEAVES][rows]
    return arrays


def _convolve(image: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return a convolution of 3 by 3 pixels at every second one, with a border of zeros.

    Shapes: image (channels, side, side), weight (out, channels, 3, 3), result (out, side / 2, ..).
    """
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    picked = windows[:, ::_STRIDE, ::_STRIDE]
    return np.tensordot(weight, picked, axes=((1, 2, 3), (0, 3, 4))) + bias[:, None, None]


def _relu(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0)


def _softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
