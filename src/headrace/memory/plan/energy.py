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


def read_watts(whole: Field) -> dict[str, float]:
    """Read a table of watts from a field; raises the field's error."""
    found = {name: whole.at(name).read(fields.number) for name in whole.read(fields.table)}
    for name, watts in found.items():
        if not 0 < watts < math.inf:
            raise whole.at(name).wrong("more than 0 watts")
    if DEFAULT not in found:
        raise whole.wrong(f"an entry {DEFAULT!r}, for operators that are not named")
    return found


def in_microjoules(graph: Graph, watts: Mapping[str, float]) -> Graph:
    """Return the graph with energies in microjoules in place of times in microseconds."""
    operators = tuple(
        replace(
            each,
            implementations=tuple(
                replace(way, time_us=way.time_us * watts.get(each.kind, watts[DEFAULT]))
                for way in each.implementations
            ),
        )
        for each in graph.operators
    )
    return replace(graph, operators=operators)


def unknown_kinds(watts: Mapping[str, float], graph: Graph) -> list[str]:
    """Return the kinds of a table that no operator of a graph has."""
    return sorted(watts.keys() - {each.kind for each in graph.operators} - {DEFAULT})
