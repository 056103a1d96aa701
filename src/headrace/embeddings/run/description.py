"""Description of a job's tables and data: the same at all trainers, from which its roles start."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.tables import EmbeddingTable, InitialValues, TableGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """Tables of a model, and the data that it is trained on.

    Attributes
    ----------
    columns : of every table, the columns of the data's ids that it is looked up with.
    groups : of the tables.
    slots : rows that the caches have room for, of every group.
    seed : of the initial values of rows.
    data : files and their format, as their reader takes them.
    """

    tables: tuple[EmbeddingTable, ...]
    columns: tuple[tuple[int, ...], ...]
    groups: tuple[TableGroup, ...]
    slots: tuple[int, ...]
    seed: int
    data: Mapping[str, Any]

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the description that `to_fields` made.

        Raises
        ------
        EmbeddingError : the fields are not such a description's.
        """
        try:
            return cls(
                tables=tuple(map(_table, fields["tables"])),
                columns=tuple(map(tuple, fields["columns"])),
                groups=tuple(map(_group, fields["groups"])),
                slots=tuple(fields["slots"]),
                seed=fields["seed"],
                data=fields["data"],
            )
        except (KeyError, TypeError) as error:
            raise EmbeddingError(f"the description of a job cannot be read: {error}") from error

    def difference(self, description: Self) -> str | None:
        """Return the name of the first field in which another description differs."""
        names = self.__dataclass_fields__
        return next(
            (name for name in names if getattr(self, name) != getattr(description, name)), None
        )


def _table(fields: dict[str, Any]) -> EmbeddingTable:
    fields = dict(fields)
    initial: dict[str, Any] = fields.pop("initial")
    return EmbeddingTable(**fields, initial=InitialValues(**initial))


def _group(fields: dict[str, Any]) -> TableGroup:
    fields = dict(fields)
    tables: list[int] = fields.pop("tables")
    return TableGroup(**fields, tables=tuple(tables))
