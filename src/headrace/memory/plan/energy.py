"""Energy as what a plan minimises, by a table of watts (section 8.1 of the MONeT paper)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace import fields
from headrace.errors import InputError
from headrace.fields import Field
from headrace.files import parse_json, read_text
from headrace.memory.graph import Graph

DEFAULT = "default"
"""Key of the watts of all operators that the table does not name."""


def load_watts(path: str | Path) -> dict[str, float]:
    """Read a table of watts: a JSON object from the kind of operator, such as ``mm``, to a number.

    Raises
    ------
    InputError : naming the file and the entry; an entry ``default`` is needed.
    """
    return read_watts(Field(parse_json(read_text(path), str(path)), str(path), InputError))


def read_watts(table: Field) -> dict[str, float]:
    """Read a table of watts from a field; raises the field's error."""
    watts_by_kind = {name: table.at(name).read(fields.number) for name in table.read(fields.table)}
    for name, watts in watts_by_kind.items():
        if not 0 < watts < math.inf:
            raise table.at(name).wrong("more than 0 watts")
    if DEFAULT not in watts_by_kind:
        raise table.wrong(f"an entry {DEFAULT!r}, for operators that are not named")
    return watts_by_kind


def in_microjoules(graph: Graph, watts: Mapping[str, float]) -> Graph:
    """Return the graph with energies in microjoules in place of times in microseconds."""
    operators = tuple(
        replace(
            operator,
            implementations=tuple(
                replace(variant, time_us=variant.time_us * watts.get(operator.kind, watts[DEFAULT]))
                for variant in operator.implementations
            ),
        )
        for operator in graph.operators
    )
    return replace(graph, operators=operators)


def unknown_kinds(watts: Mapping[str, float], graph: Graph) -> list[str]:
    """Return the kinds of a table that no operator of a graph has."""
    return sorted(watts.keys() - {operator.kind for operator in graph.operators} - {DEFAULT})
