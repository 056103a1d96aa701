"""The attention profile: how alike the heads of a model are, on a text."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import LayerHeads
from headrace.errors import ArtifactError
from headrace.facades import public_value
from headrace.fields import Field

_MOST = 1 << 20
_PAIR_COLUMNS = (
    "correlation",
    "correlation_beyond_first",
    "sample_correlation",
    "distance",
    "output_error",
)
_LATER_COLUMN = "sample_correlation_beyond_first"
"""Of the table of pairs, which profiles by an earlier version do not have."""


@public_value("headrace.attention", eq=False, repr=False)
class LayerProfile:
    """Likeness of the heads of one layer, [heads, heads] but where noted.

    Attributes
    ----------
    correlation : of two heads' probabilities, the mean over samples (Figure 6.3).
    correlation_beyond_first : the same without the first token, which most heads look at most, and
        with the others' probabilities divided by their sum.
    sample_correlation : `correlation` of one sample (Figure 6.4).
    distance : mean square of the distance of two heads' rows of probabilities.
    output_error : [representative, head]: change of the layer's output where a head uses the
        probabilities of another, mean square over that of a head's own output, on average over the
        heads: a head that adds little to the layer may follow one that is unlike it.
    uniformity : [heads]: entropy of the probabilities over its largest value; 1: a head that
        looks at all tokens alike (Figure 6.1).
    sample_correlation_beyond_first : `correlation_beyond_first` of one sample; None of a profile by
        an earlier version.
    changes : [tokens]: share of pairs of heads that are in one cluster by the first n tokens, and
        not by the first n + 1, or the other way round (Figure 6.6); from n = 2 on.
    """

    heads: LayerHeads
    correlation: NDArray[np.float64]
    correlation_beyond_first: NDArray[np.float64]
    sample_correlation: NDArray[np.float64]
    distance: NDArray[np.float64]
    output_error: NDArray[np.float64]
    uniformity: NDArray[np.float64]
    changes: NDArray[np.float64]
    sample_correlation_beyond_first: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        count = self.heads.query_heads
        for name in (*_PAIR_COLUMNS, "uniformity", "changes"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        for name in _PAIR_COLUMNS:
            if getattr(self, name).shape != (count, count):
                raise AttentionError(f"{name} needs {count} times {count} numbers")
        if self.uniformity.shape != (count,):
            raise AttentionError(f"uniformity needs {count} numbers")
        beyond = self.sample_correlation_beyond_first
        if beyond is not None and np.shape(beyond) != (count, count):
            raise AttentionError(f"{_LATER_COLUMN} needs {count} times {count} numbers")


@stored_value("headrace.attention", AttentionError, repr=False)
class AttentionProfile(
    ArtifactValue, kind="attention-profile", schema=1, command="headrace attention measure"
):
    """Likeness of a model's heads, layer by layer.

    Attributes
    ----------
    model : digest of the weights (`headrace.attention.model_digest`).
    text : digest of the text.
    samples, tokens : of the text that were read, and the tokens of each.
    """

    layers: tuple[LayerProfile, ...]
    model: str
    text: str
    samples: int
    tokens: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers:
            raise AttentionError("layers are none, needs one for each layer of attention")

    @property
    def description(self) -> str:
        """Layers, and the text that they were measured on."""
        return f"{len(self.layers)} layers, {self.samples} samples of {self.tokens} tokens"

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the head, and the tables of pairs, heads and changes, layer after layer."""
        head = {
            "model": self.model,
            "text": self.text,
            "samples": self.samples,
            "tokens": self.tokens,
            "layers": [
                {
                    "heads": layer.heads.query_heads,
                    "key_value_heads": layer.heads.key_value_heads,
                    "dim": layer.heads.dim,
                    "changes": [float(share) for share in layer.changes],
                }
                for layer in self.layers
            ],
        }
        pairs = {
            name: np.concatenate([getattr(layer, name).ravel() for layer in self.layers])
            for name in _PAIR_COLUMNS
        }
        later = [
            layer.sample_correlation_beyond_first.ravel()
            for layer in self.layers
            if layer.sample_correlation_beyond_first is not None
        ]
        if len(later) == len(self.layers):
            pairs[_LATER_COLUMN] = np.concatenate(later)
        heads = {"uniformity": np.concatenate([layer.uniformity for layer in self.layers])}
        return head, {"pairs": pairs, "heads": heads}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "AttentionProfile":
        """Rebuild the profile; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        nodes = head.at("layers").items()
        shapes = [
            LayerHeads(
                query_heads=node.at("heads").integer(1, _MOST),
                key_value_heads=node.at("key_value_heads").integer(1, _MOST),
                dim=node.at("dim").integer(1, _MOST),
            )
            for node in nodes
        ]
        pairs = artifact.numbers("pairs", _PAIR_COLUMNS, source)
        heads = artifact.numbers("heads", ("uniformity",), source)
        counts = [layer.query_heads for layer in shapes]
        ends, pair_ends = np.cumsum(counts), np.cumsum([count**2 for count in counts])
        uniformity = np.split(heads["uniformity"], ends[:-1])
        matrices = {name: np.split(pairs[name], pair_ends[:-1]) for name in pairs}
        try:
            return cls(
                layers=tuple(
                    LayerProfile(
                        heads=layer,
                        uniformity=uniformity[index],
                        changes=np.array(
                            [share.read(fields.number) for share in node.at("changes").items()]
                        ),
                        **{
                            name: matrices[name][index].reshape(layer.query_heads, -1)
                            for name in (*_PAIR_COLUMNS, _LATER_COLUMN)
                            if name in matrices
                        },
                    )
                    for index, (layer, node) in enumerate(zip(shapes, nodes, strict=True))
                ),
                model=head.at("model").text(),
                text=head.at("text").text(),
                samples=head.at("samples").integer(1, _MOST),
                tokens=head.at("tokens").integer(1, _MOST),
                provenance=artifact.provenance,
            )
        except (AttentionError, ValueError) as error:
            raise ArtifactError(f"{source}: {error}") from error
