"""The attention plan: representatives and bits of every layer, and what they were chosen by."""

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import (
    BLOCK_TOKENS,
    TAIL_TOKENS,
    LayerHeads,
    ModelWeights,
    StorageFormat,
    key_bytes,
    value_bytes,
)
from headrace.errors import ArtifactError
from headrace.facades import public_value
from headrace.fields import Field, number

FIRST_TOKENS = 5
"""Tokens by whose probabilities a request's heads are clustered (section 6.2.3)."""


@stored_value("headrace.attention", AttentionError)
class LayerPlan:
    """Contents of one layer's cache.

    Attributes
    ----------
    clusters : representatives: heads whose scores are computed.
    key_heads : heads of keys that are kept: without shared ones, as many as representatives.
    representatives : of each head, the head whose probabilities it uses; None: found for every
        request from its first tokens.
    keys, values : how they are stored.
    """

    heads: LayerHeads
    clusters: int
    key_heads: int
    representatives: tuple[int, ...] | None = None
    keys: StorageFormat = StorageFormat.MODEL
    values: StorageFormat = StorageFormat.MODEL

    def __post_init__(self) -> None:
        heads = self.heads
        if heads.key_value_heads < 1 or heads.query_heads % heads.key_value_heads:
            raise AttentionError(
                f"heads are {heads.query_heads}, needs a multiple of the {heads.key_value_heads} "
                "heads of keys"
            )
        if not 1 <= self.clusters <= heads.query_heads:
            raise AttentionError(f"clusters are {self.clusters}, needs 1 to {heads.query_heads}")
        if not 1 <= self.key_heads <= heads.key_value_heads:
            raise AttentionError(
                f"key_heads are {self.key_heads}, needs 1 to {heads.key_value_heads}"
            )
        if not self.clustered and self.key_heads < heads.key_value_heads:
            raise AttentionError(
                f"key_heads are {self.key_heads} where every head represents itself, needs "
                f"{heads.key_value_heads}"
            )
        if self.representatives is not None:
            self._check_representatives(self.representatives)

    def _check_representatives(self, representatives: tuple[int, ...]) -> None:
        count = self.heads.query_heads
        if len(representatives) != count or not all(0 <= head < count for head in representatives):
            raise AttentionError(f"representatives need {count} heads, each of 0 to {count - 1}")
        distinct = set(representatives)
        group = count // self.heads.key_value_heads
        for head in sorted(distinct):
            if representatives[head] != head:
                raise AttentionError(
                    f"head {head} represents others, and has head {representatives[head]} as its "
                    "representative, needs itself"
                )
        if len(distinct) != self.clusters:
            raise AttentionError(f"representatives are {len(distinct)}, clusters {self.clusters}")
        keys = len({head // group for head in distinct})
        if keys != self.key_heads:
            raise AttentionError(f"representatives have {keys} heads of keys, not {self.key_heads}")

    @property
    def clustered(self) -> bool:
        """True if some head uses another's probabilities."""
        return self.clusters < self.heads.query_heads

    def token_bytes(self, element_bytes: int) -> float:
        """Return the bytes that a token takes in the cache, without what `cache_bytes` adds."""
        heads = self.heads
        return self.key_heads * key_bytes(
            self.keys, heads.dim, element_bytes
        ) + heads.key_value_heads * value_bytes(self.values, heads.dim, element_bytes)

    def cache_bytes(self, batch: int, tokens: int, element_bytes: int) -> int:
        """Return the bytes of a growing cache: whole blocks, and the tail of keys of 4 bits."""
        blocks = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        tail = 0
        if self.keys is StorageFormat.INT4:
            tail = TAIL_TOKENS * self.key_heads * self.heads.dim * element_bytes
        return batch * (round(blocks * self.token_bytes(element_bytes)) + tail)


@public_value("headrace.attention")
class FrontierPoint:
    """One point of the frontier of bytes against loss.

    Attributes
    ----------
    name : what is stored, in words.
    share : bytes of a token over those of the model's own cache.
    added_loss : loss on held-out text over the model's own, less 1.
    standard_error : of `added_loss`, over samples of the text in pairs.
    """

    name: str
    share: float
    added_loss: float
    standard_error: float

    @property
    def likely_loss(self) -> float:
        """Added loss and one standard error: what is held against the loss that is allowed."""
        return self.added_loss + self.standard_error


@stored_value("headrace.attention", AttentionError, repr=False)
class AttentionPlan(
    ArtifactValue, kind="attention-plan", schema=1, command="headrace attention plan"
):
    """Representatives and bits of every layer of one model.

    Attributes
    ----------
    model : digest of all weights (`headrace.attention.model_digest`); empty: any model
        of these shapes.
    text : digest of the text that losses were measured on.
    element_bytes : of a number in the model's own cache.
    first_tokens : by whose probabilities a request's heads are clustered.
    frontier : choices that were measured and that no other beats in bytes and in likely loss.
    chosen : name of the one that the layers are; empty where none was measured.
    weights : of the model; None: not known, and no step of decoding is predicted.
    alternatives : plans of the same model with more clusters, the next number first: for text on
        which fewer heads look at the same tokens (`headrace.attention.AttentionAdaptation`).
    output_error : change of the layers' outputs that the plan makes on its text, mean square over
        that of the outputs of all heads, in the model's type; None: not measured.
    """

    layers: tuple[LayerPlan, ...]
    model: str = ""
    text: str = ""
    element_bytes: int = 2
    first_tokens: int = FIRST_TOKENS
    frontier: tuple[FrontierPoint, ...] = ()
    chosen: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    weights: ModelWeights | None = None
    alternatives: "tuple[AttentionPlan, ...]" = ()
    output_error: float | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise AttentionError("layers are none, needs one for each layer of attention")
        if self.first_tokens < 1:
            raise AttentionError(f"first_tokens are {self.first_tokens}, needs at least 1")
        if self.output_error is not None and not self.output_error >= 0:
            raise AttentionError(f"output_error is {self.output_error}, needs at least 0")
        for fewer, more in pairwise((self, *self.alternatives)):
            if [layer.heads for layer in more.layers] != [layer.heads for layer in self.layers]:
                raise AttentionError("alternatives have other heads: they are for another model")
            if more.clusters <= fewer.clusters:
                raise AttentionError(
                    f"alternatives have {more.clusters} clusters after {fewer.clusters}, needs "
                    "ever more"
                )

    @property
    def clusters(self) -> int:
        """Clusters of all layers: heads whose scores are computed."""
        return sum(layer.clusters for layer in self.layers)

    @property
    def share(self) -> float:
        """Bytes of a token over those of the model's own cache."""
        return self.token_bytes / self.uncompressed().token_bytes

    @property
    def token_bytes(self) -> float:
        """Bytes of a token's keys and values in all layers."""
        return sum(layer.token_bytes(self.element_bytes) for layer in self.layers)

    def uncompressed(self) -> "AttentionPlan":
        """Return the plan of the same model that keeps everything in the model's type."""
        layers = tuple(uncompressed_layer(layer.heads) for layer in self.layers)
        return replace(
            self, layers=layers, frontier=(), chosen="", alternatives=(), output_error=None
        )

    @property
    def description(self) -> str:
        """Layers, clusters and the share of the cache's bytes."""
        heads = sum(layer.heads.query_heads for layer in self.layers)
        return (
            f"{len(self.layers)} layers, {self.clusters} of {heads} heads represent, "
            f"{self.share:z.0%} of the cache's bytes"
        )

    def cache_bytes(self, batch: int, tokens: int) -> int:
        """Return the bytes of a growing cache of so many requests and tokens."""
        return sum(layer.cache_bytes(batch, tokens, self.element_bytes) for layer in self.layers)

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the head; there are no tables."""
        weights = self.weights
        return {
            "model": self.model,
            "text": self.text,
            "element_bytes": self.element_bytes,
            "first_tokens": self.first_tokens,
            "chosen": self.chosen,
            # absent where not known, as in plans of earlier versions
            **({} if weights is None else {"weights": weights._asdict()}),
            "frontier": [
                {
                    "name": choice.name,
                    "share": float(choice.share),
                    "added_loss": float(choice.added_loss),
                    "standard_error": float(choice.standard_error),
                }
                for choice in self.frontier
            ],
            "layers": [_layer_content(layer) for layer in self.layers],
            # absent in plans of earlier versions
            **({} if self.output_error is None else {"output_error": self.output_error}),
            **(
                {}
                if not self.alternatives
                else {
                    "alternatives": [
                        {
                            "name": alternative.chosen,
                            "first_tokens": alternative.first_tokens,
                            "layers": [_layer_content(layer) for layer in alternative.layers],
                        }
                        for alternative in self.alternatives
                    ]
                }
            ),
        }, {}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "AttentionPlan":
        """Rebuild the plan; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        try:
            plan = cls(
                layers=tuple(_layer(node) for node in head.at("layers").items()),
                model=head.at("model").text(),
                text=head.at("text").text(),
                element_bytes=head.at("element_bytes").integer(1, 8),
                first_tokens=head.at("first_tokens").integer(1, _MOST),
                chosen=head.at("chosen").text(),
                frontier=tuple(_choice(node) for node in head.at("frontier").items()),
                weights=_weights(head.at("weights", default=None)),
                provenance=artifact.provenance,
                output_error=_output_error(head.at("output_error", default=None)),
            )
            alternatives = head.at("alternatives", default=[]).items()
            return replace(
                plan, alternatives=tuple(_alternative(plan, node) for node in alternatives)
            )
        except AttentionError as error:
            raise ArtifactError(f"{source}: {error}") from error


_MOST = 1 << 20
"""Largest counts of heads, dimensions and tokens in a file."""
_MOST_WEIGHTS = 1 << 50


def _weights(node: Field) -> ModelWeights | None:
    if node.found is None:
        return None
    return ModelWeights(
        read_bytes=node.at("read_bytes").integer(1, _MOST_WEIGHTS),
        read_numbers=node.at("read_numbers").integer(1, _MOST_WEIGHTS),
        hidden_size=node.at("hidden_size").integer(1, _MOST),
    )


def _choice(node: Field) -> FrontierPoint:
    return FrontierPoint(
        name=node.at("name").text(),
        share=node.at("share").read(number),
        added_loss=node.at("added_loss").read(number),
        standard_error=node.at("standard_error").read(number),
    )


def _output_error(node: Field) -> float | None:
    return None if node.found is None else node.read(number)


def _alternative(plan: AttentionPlan, node: Field) -> AttentionPlan:
    return replace(
        plan.uncompressed(),
        layers=tuple(_layer(layer) for layer in node.at("layers").items()),
        first_tokens=node.at("first_tokens").integer(1, _MOST),
        chosen=node.at("name").text(),
    )


def _layer_content(layer: LayerPlan) -> Mapping[str, Any]:
    return {
        "heads": layer.heads.query_heads,
        "key_value_heads": layer.heads.key_value_heads,
        "dim": layer.heads.dim,
        "clusters": layer.clusters,
        "key_heads": layer.key_heads,
        "representatives": layer.representatives and list(layer.representatives),
        "keys": layer.keys.value,
        "values": layer.values.value,
    }


def _layer(node: Field) -> LayerPlan:
    representatives = node.at("representatives")
    return LayerPlan(
        heads=LayerHeads(
            query_heads=node.at("heads").integer(1, _MOST),
            key_value_heads=node.at("key_value_heads").integer(1, _MOST),
            dim=node.at("dim").integer(1, _MOST),
        ),
        clusters=node.at("clusters").integer(1, _MOST),
        key_heads=node.at("key_heads").integer(1, _MOST),
        representatives=None
        if representatives.found is None
        else tuple(head.integer(0, _MOST) for head in representatives.items()),
        keys=_format(node.at("keys")),
        values=_format(node.at("values")),
    )


def _format(node: Field) -> StorageFormat:
    try:
        return StorageFormat(node.text())
    except ValueError:
        raise node.wrong(" or ".join(form.value for form in StorageFormat)) from None


def uncompressed_layer(heads: LayerHeads) -> LayerPlan:
    """Return the plan of a layer that keeps everything in the model's type."""
    return LayerPlan(heads=heads, clusters=heads.query_heads, key_heads=heads.key_value_heads)
