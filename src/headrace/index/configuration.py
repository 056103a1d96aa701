"""The configuration of an index: the type of its leaves, and their parameters."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from headrace.errors import ArtifactError
from headrace.facades import public_value
from headrace.fields import Field, boolean, conform, number, shown, table, text
from headrace.index.errors import ConfigurationError
from headrace.index.tables import INTEGER_LIMITS, LEAVES, NUMBER_LIMITS

_USED = {
    "gapped": ("leaf_keys", "fill", "max_search", "max_shifts", "insert_fraction"),
    "log": ("fragment_keys", "fragments", "initial_fragments", "fingerprints", "fill"),
    "hashed": ("fragment_keys", "fragments", "initial_fragments", "fill"),
    "perfect": ("leaf_keys",),
}


@public_value("headrace.index")
class Configuration:
    """Parameters of an index (section 6.2 of the paper), those of the native tree.

    Attributes
    ----------
    leaf : type of new leaves: "gapped" (gapped array), "log" (fragmented log), "hashed" (cache
        lines chosen by a hash), "perfect" (minimal perfect hash with a write buffer).
    fragment_keys : most keys of a fragment (mf-size), 8 to 32,768; of log and hashed leaves.
    fragments : most slots of the node above fragments (Mnf), 2 to 1,048,576.
    initial_fragments : slots of a node that replaces a full leaf (nf), 2 to `fragments`.
    fingerprints : whether log leaves are searched by one-byte fingerprints.
    leaf_keys : most keys of a gapped or perfect leaf, a power of two from 16 to 65,536.
    fill : share of a bulk-loaded leaf that is filled, 0.3 to 0.98.
    max_search, max_shifts : mean search iterations and shifts beyond which a gapped leaf is
        rebuilt, if more than expected (Msi, Msh).
    insert_fraction : expected share of inserts, for the cost model of gapped leaves.

    Raises
    ------
    ConfigurationError : naming the field, what was found and what is needed.
    """

    leaf: str = "hashed"
    fragment_keys: int = 512
    fragments: int = 1 << 18
    initial_fragments: int = 8
    fingerprints: bool = True
    leaf_keys: int = 4096
    fill: float = 0.7
    max_search: float = 4.0
    max_shifts: float = 32.0
    insert_fraction: float = 0.5

    def __post_init__(self) -> None:
        conform(self, ConfigurationError)
        if self.leaf not in LEAVES:
            raise _wrong("leaf", self.leaf, f"one of {', '.join(LEAVES)}")
        for name, (least, most) in INTEGER_LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise _wrong(name, getattr(self, name), f"{least} to {most}")
        for name, (low, high) in NUMBER_LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise _wrong(name, getattr(self, name), f"{low:g} to {high:g}")
        if self.initial_fragments > self.fragments:
            raise _wrong(
                "initial_fragments", self.initial_fragments, f"at most fragments ({self.fragments})"
            )
        if self.leaf_keys & (self.leaf_keys - 1):
            raise _wrong("leaf_keys", self.leaf_keys, "a power of two")

    @property
    def used(self) -> dict[str, Any]:
        """Fields that leaves of this type depend on, besides `leaf`."""
        return {name: getattr(self, name) for name in _USED[self.leaf]}

    @property
    def name(self) -> str:
        """One line for tables: the type, and the fields that differ from the defaults."""
        plain = {field.name: field.default for field in fields(self)}
        changed = [f"{name}={_short(v)}" for name, v in self.used.items() if v != plain[name]]
        return " ".join([self.leaf, *changed])

    def to_head(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self)

    @classmethod
    def from_field(cls, head: Field) -> "Configuration":
        """Rebuild a configuration from JSON; fields that are absent have their defaults.

        Raises
        ------
        ArtifactError, or the field's own error : naming the file and the field.
        """
        names = [field.name for field in fields(cls)]
        head.allow(*names)
        settings: Mapping[str, Any] = head.read(table)
        for name in settings:
            kind = {"leaf": text, "fingerprints": boolean}.get(name, number)
            head.at(name).read(kind)
        try:
            return cls(**settings)
        except ConfigurationError as error:
            raise head.error(f"{head.source}: field '{head.path}': {error}") from error


def read_configuration(value: Any, source: str) -> Configuration:
    """Return the configuration of a JSON value that was read from `source`; see `from_field`."""
    return Configuration.from_field(Field(value, source, ArtifactError))


def _wrong(name: str, setting: Any, needs: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is {shown(setting)}, needs {needs}")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
