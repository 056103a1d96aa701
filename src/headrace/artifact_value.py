"""Values that artifacts store: digest, files and bytes follow from kind, schema and content.

`headrace.artifact` has the format of the files. A capability's ``kinds`` registers such classes
(`headrace.kinds.kind_of`).
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import headrace.artifact as artifact_io
from headrace.artifact import Artifact, Table
from headrace.errors import InputError
from headrace.facades import offered_by, set_fields
from headrace.fields import conform

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def stored_value(
    facade: str,
    error: type[InputError],
    *,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - as of dataclass
    slots: bool = True,
) -> Callable[[_Class], _Class]:
    """Return a decorator of a public value that an artifact stores, whole or as a part.

    It makes a frozen dataclass with keywords alone, which `facade` offers. Its numbers get the
    types of their fields (`headrace.fields.conform`), before ``__post_init__`` checks them. Fields
    that a later version adds are as those of `headrace.facades.public_value`.

    Parameters
    ----------
    error : raised for what is no number, naming the field.
    eq, repr, slots : as of `dataclass`.
    """

    def make(value: _Class) -> _Class:
        check: Callable[[Any], None] | None = value.__dict__.get("__post_init__")

        def conform_and_check(self: Any) -> None:
            conform(self, error)
            if check is not None:
                check(self)

        value.__post_init__ = conform_and_check
        options = {"frozen": True, "kw_only": True, "eq": eq, "repr": repr, "slots": slots}
        stored = dataclass(**options)(value)
        if slots:
            stored.__setstate__ = set_fields
        return offered_by(facade)(stored)

    return make


class ArtifactValue(ABC):
    """Base of a value that an artifact stores.

    A field `provenance` (sources and settings that the value was made from) is written, and is not
    part of the digest. A class without one has it from the caller that writes a file.

    Class arguments
    ---------------
    kind : in the artifact's envelope.
    schema : version of the layout of head and tables.
    command : that makes such a file; "": none does.
    """

    __slots__ = ()

    KIND: ClassVar[str]
    SCHEMA: ClassVar[int]
    REMEDY: ClassVar[str]
    """End of an error about a file of another kind, from `command`."""

    def __init_subclass__(
        cls, *, kind: str | None = None, schema: int = 1, command: str = "", **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        # None: of an abstract class, and where dataclass makes a class again for its slots
        if kind is not None:
            remedy = f"make one with {command}" if command else ""
            cls.KIND, cls.SCHEMA, cls.REMEDY = kind, schema, remedy  # pyright: ignore[reportConstantRedefinition]

    @property
    @abstractmethod
    def description(self) -> str:
        """Describe the value and its main figures in one line, which `repr` shows."""

    def __repr__(self) -> str:
        """Return the summary: the fields may hold columns of any length."""
        return f"<{type(self).__name__}: {self.description}>"

    def _repr_html_(self) -> str:
        """Return the tables that notebooks show."""
        # by name: what shows the kinds' values imports this module
        return pkgutil.resolve_name("headrace.notebook:html_of_value")(self)

    @abstractmethod
    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""

    @classmethod
    @abstractmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> Self:
        """Rebuild the value; errors begin with `source`."""

    def to_artifact(self, provenance: Mapping[str, Any] | None = None) -> Artifact:
        """Return the value as an artifact.

        Parameters
        ----------
        provenance : None: the value's own, empty without such a field.
        """
        head, tables = self.to_content()
        return Artifact(
            kind=self.KIND,
            schema=self.SCHEMA,
            head=head,
            tables=tables,
            provenance=getattr(self, "provenance", {}) if provenance is None else provenance,
        )

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the content."""
        return self.to_artifact().digest

    def save(self, path: str | Path, provenance: Mapping[str, Any] | None = None) -> None:
        """Write the value to `path` atomically; see `to_artifact` for `provenance`.

        Raises
        ------
        ArtifactError : if the file cannot be written, with the reason.
        """
        self.to_artifact(provenance).save(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a value from `path`.

        Raises
        ------
        ArtifactError : if the file is no artifact of this kind and schema, or was altered.
        HeadraceError : see `from_artifact`; all name the file and the field.
        """
        return cls.from_artifact(
            artifact_io.load(path, cls.KIND, cls.SCHEMA, cls.REMEDY), str(path)
        )

    @classmethod
    def from_bytes(cls, content: bytes, source: str = "artifact") -> Self:
        """Read a value from a file's bytes; see `load`."""
        artifact = artifact_io.from_bytes(
            content, source=source, kind=cls.KIND, schema=cls.SCHEMA, remedy=cls.REMEDY
        )
        return cls.from_artifact(artifact, source)


class PlainArtifactValue(ArtifactValue):
    """Base of a value whose fields users may also write as plain JSON, with a "provenance"."""

    __slots__ = ()

    PLAIN_FIELDS: ClassVar[frozenset[str]]
    """Names that tell such a file from other JSON: it has all of them."""

    @classmethod
    @abstractmethod
    def from_document(
        cls, document: Mapping[str, Any], provenance: Mapping[str, Any], source: str
    ) -> Self:
        """Rebuild the value from the fields of plain JSON; errors begin with `source`."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a value: an artifact, or its fields and "provenance" as plain JSON.

        Raises
        ------
        ArtifactError : naming the file and the field.
        """
        plain = artifact_io.plain_document(path, cls.REMEDY)
        return super().load(path) if plain is None else cls.from_document(*plain, str(path))
