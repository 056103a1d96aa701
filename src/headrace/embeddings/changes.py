"""Changes of a job while it runs, with their reasons."""

from collections.abc import Mapping
from typing import Any, Self

from headrace import fields
from headrace.artifact_value import stored_value
from headrace.embeddings.errors import EmbeddingError
from headrace.fields import Field


@stored_value("headrace.embeddings", EmbeddingError)
class JobChange:
    """Change of a job.

    Attributes
    ----------
    name : of what changed: "lookahead", "lookahead limit", "prefetch", "ready", "shares"; "none":
        nothing did.
    before, after : a number, or the share of each trainer.
    batch : that was decided last.
    reason : a sentence.
    """

    name: str
    before: int | tuple[float, ...]
    after: int | tuple[float, ...]
    batch: int
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", _value(self.before))
        object.__setattr__(self, "after", _value(self.after))

    @property
    def values(self) -> str:
        """Both values as text; empty where nothing changed."""
        if self.before == self.after:
            return ""
        return f"{_text(self.before)} -> {_text(self.after)}"

    def __str__(self) -> str:
        """Return it as a sentence."""
        change = f"{self.name} {self.values}: " if self.values else ""
        return f"after batch {self.batch}: {change}{self.reason}"

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return {
            "name": self.name,
            "before": _plain(self.before),
            "after": _plain(self.after),
            "batch": self.batch,
            "reason": self.reason,
        }

    @classmethod
    def from_fields(cls, document: Mapping[str, Any], source: str = "a change") -> Self:
        """Return the change that `to_fields` described.

        Raises
        ------
        EmbeddingError : a field is missing, or of another type; begins with `source`.
        """
        node = Field(document, source, EmbeddingError)
        return cls(
            name=node.at("name").text(),
            before=node.at("before").read(_value),
            after=node.at("after").read(_value),
            batch=node.at("batch").integer(0, 1 << 62),
            reason=node.at("reason").text(),
        )


def _text(value: int | tuple[float, ...]) -> str:
    return str(value) if isinstance(value, int) else "/".join(f"{share:.3f}" for share in value)


def _plain(value: int | tuple[float, ...]) -> int | list[float]:
    return value if isinstance(value, int) else [*value]


def _value(node: Any) -> int | tuple[float, ...]:
    if isinstance(node, list | tuple):
        return tuple(map(fields.number, node))
    return fields.integer(node)
