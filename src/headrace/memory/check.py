"""Reading of graphs from JSON, and the rules that every graph keeps."""

from collections.abc import Callable
from typing import Any

from headrace import fields
from headrace.fields import Field
from headrace.memory.graph import Graph, Implementation, Operator, Storage

GRAPH_FIELDS = ("storages", "operators", "forward_count", "outputs", "results", "resident")

_MOST_BYTES = 1 << 50
_MOST_US = 86_400e6
"""A day: a longer operator is a mistake in units."""


def graph_document(graph: Graph) -> dict[str, Any]:
    """Return a graph as JSON; defaults are left out."""
    return {
        "storages": [{"name": each.name, "nbytes": each.nbytes} for each in graph.storages],
        "operators": [_operator_document(each) for each in graph.operators],
        "forward_count": graph.forward_count,
        "outputs": sorted(graph.outputs),
        "results": sorted(graph.results),
        "resident": dict(graph.resident),
    }


def _operator_document(operator: Operator) -> dict[str, Any]:
    return {
        "name": operator.name,
        "module": operator.module,
        "again": operator.again,
        "implementations": [_implementation_document(each) for each in operator.implementations],
    }


def _implementation_document(each: Implementation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": each.name,
        "time_us": each.time_us,
        "workspace_bytes": each.workspace_bytes,
        "reads": list(each.reads),
        "creates": list(each.creates),
    }
    if each.overwrites is not None:
        document["overwrites"] = each.overwrites
    if each.reorders:
        document["reorders"] = True
    return document


def read_graph(whole: Field) -> Graph:
    """Read a graph from the fields of `graph_document`, and check it.

    The rules: every storage has one creator; an implementation reads only what operators before its
    own create; the first implementations are a plain run; what is overwritten is an operand of the
    size of the first creation; outputs are of the forward pass, and every implementation of their
    creator (and of those of results) creates them; a backward operator does not run again.

    Raises
    ------
    the field's error : naming the field, what was found and what is needed.
    """
    storages = tuple(
        Storage(name=each.at("name").text(), nbytes=each.at("nbytes").integer(0, _MOST_BYTES))
        for each in whole.at("storages").items()
    )
    operators = tuple(_operator(each, len(storages)) for each in whole.at("operators").items())
    resident = whole.at("resident", default={})
    graph = Graph(
        storages=storages,
        operators=operators,
        forward_count=whole.at("forward_count").integer(0, len(operators)),
        outputs=_held(whole.at("outputs"), len(storages)),
        results=_held(whole.at("results"), len(storages)),
        resident={
            name: resident.at(name).integer(0, _MOST_BYTES) for name in resident.read(fields.table)
        },
    )
    _check(graph, whole)
    return graph


def _operator(row: Field, storages: int) -> Operator:
    row.allow("name", "module", "again", "implementations")
    ways = tuple(_implementation(each, storages) for each in row.at("implementations").items())
    if not ways:
        raise row.at("implementations").wrong("one at least")
    return Operator(
        name=row.at("name").text(),
        module=row.at("module", default="").text(),
        again=row.at("again").read(fields.boolean),
        implementations=ways,
    )


def _implementation(row: Field, storages: int) -> Implementation:
    row.allow(*Implementation.__dataclass_fields__)
    time = row.at("time_us")
    time_us = time.read(fields.number)
    if not 0 <= time_us <= _MOST_US:
        raise time.wrong(f"0 to {_MOST_US:g}")
    over = row.at("overwrites", default=None)
    return Implementation(
        name=row.at("name").text(),
        time_us=time_us,
        workspace_bytes=row.at("workspace_bytes").integer(0, _MOST_BYTES),
        reads=_indices(row.at("reads"), storages),
        creates=_indices(row.at("creates"), storages),
        overwrites=None if over.found is None else over.integer(0, storages - 1),
        reorders=row.at("reorders", default=False).read(fields.boolean),
    )


def _indices(row: Field, count: int) -> tuple[int, ...]:
    found = tuple(each.integer(0, count - 1) for each in row.items())
    if len(set(found)) < len(found):
        raise row.wrong("every storage once")
    return found


def _held(row: Field, count: int) -> frozenset[int]:
    return frozenset(_indices(row, count))


def _check(graph: Graph, whole: Field) -> None:
    creator: dict[int, int] = {}
    plain: set[int] = set()
    for index, operator in enumerate(graph.operators):
        row = whole.at("operators", index)
        if operator.again and index >= graph.forward_count:
            raise row.at("again").wrong("false for an operator of the backward pass")
        made: set[int] = set()
        for number, way in enumerate(operator.implementations):
            _check_way(graph, way, row.at("implementations", number), creator.__contains__)
            made.update(way.creates)
        for storage in sorted(made):
            if storage in creator:
                raise row.fail(
                    f"creates storage {storage}, which operators[{creator[storage]}] creates; "
                    "needs one creator"
                )
            creator[storage] = index
        first = operator.implementations[0]
        if absent := [storage for storage in first.reads if storage not in plain]:
            raise row.at("implementations", 0, "reads").fail(
                f"has storage {absent[0]}, which no first implementation before it leaves"
            )
        plain.update(first.creates)
        if first.overwrites is not None:
            if index < graph.forward_count:
                raise row.at("implementations", 0).fail(
                    "overwrites in the forward pass, needs a first one that does not"
                )
            plain.discard(first.overwrites)
    _check_held(graph, whole, creator)
    if gone := sorted((graph.outputs | graph.results) - plain):
        raise whole.at("operators").fail(
            f"overwrite storage {gone[0]} in a plain run, which outputs or results have"
        )


def _check_way(
    graph: Graph, way: Implementation, row: Field, created: Callable[[int], bool]
) -> None:
    for place, storage in enumerate(way.reads):
        if not created(storage):
            raise row.at("reads", place).wrong("a storage that an operator before it creates")
    if way.overwrites is None:
        return
    over = row.at("overwrites")
    if way.overwrites not in way.reads or not way.creates:
        raise over.wrong("one of 'reads', and something in 'creates'")
    old, new = graph.storages[way.overwrites], graph.storages[way.creates[0]]
    if old.nbytes != new.nbytes:
        raise over.fail(f"has {old.nbytes} bytes, its memory becomes one of {new.nbytes} bytes")


def _check_held(graph: Graph, whole: Field, creator: dict[int, int]) -> None:
    for name, held in (("outputs", graph.outputs), ("results", graph.results)):
        for storage in sorted(held):
            by = creator.get(storage)
            if by is None or (name == "outputs" and by >= graph.forward_count):
                raise whole.at(name).fail(
                    f"has storage {storage}, needs one that an operator "
                    f"{'of the forward pass ' * (name == 'outputs')}creates"
                )
            if any(storage not in way.creates for way in graph.operators[by].implementations):
                raise whole.at(name).fail(
                    f"has storage {storage}, which not all implementations of operators[{by}] "
                    "create"
                )
