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
        "storages": [
            {"name": storage.name, "nbytes": storage.nbytes} for storage in graph.storages
        ],
        "operators": [_operator_document(operator) for operator in graph.operators],
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
        "implementations": [
            _implementation_document(implementation) for implementation in operator.implementations
        ],
    }


def _implementation_document(implementation: Implementation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": implementation.name,
        "time_us": implementation.time_us,
        "workspace_bytes": implementation.workspace_bytes,
        "reads": list(implementation.reads),
        "creates": list(implementation.creates),
    }
    if implementation.overwrites is not None:
        document["overwrites"] = implementation.overwrites
    if implementation.reorders:
        document["reorders"] = True
    return document


def read_graph(document: Field) -> Graph:
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
        Storage(name=row.at("name").text(), nbytes=row.at("nbytes").integer(0, _MOST_BYTES))
        for row in document.at("storages").items()
    )
    operators = tuple(_operator(row, len(storages)) for row in document.at("operators").items())
    resident = document.at("resident", default={})
    graph = Graph(
        storages=storages,
        operators=operators,
        forward_count=document.at("forward_count").integer(0, len(operators)),
        outputs=_held(document.at("outputs"), len(storages)),
        results=_held(document.at("results"), len(storages)),
        resident={
            name: resident.at(name).integer(0, _MOST_BYTES) for name in resident.read(fields.table)
        },
    )
    _check(graph, document)
    return graph


def _operator(row: Field, storages: int) -> Operator:
    row.allow("name", "module", "again", "implementations")
    ways = tuple(
        _implementation(variant_row, storages) for variant_row in row.at("implementations").items()
    )
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
    indices = tuple(index.integer(0, count - 1) for index in row.items())
    if len(set(indices)) < len(indices):
        raise row.wrong("every storage once")
    return indices


def _held(row: Field, count: int) -> frozenset[int]:
    return frozenset(_indices(row, count))


def _check(graph: Graph, document: Field) -> None:
    creator: dict[int, int] = {}
    plain: set[int] = set()
    for index, operator in enumerate(graph.operators):
        row = document.at("operators", index)
        if operator.again and index >= graph.forward_count:
            raise row.at("again").wrong("false for an operator of the backward pass")
        created: set[int] = set()
        for number, variant in enumerate(operator.implementations):
            _check_way(graph, variant, row.at("implementations", number), creator.__contains__)
            created.update(variant.creates)
        for storage in sorted(created):
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
    _check_held(graph, document, creator)
    if gone := sorted((graph.outputs | graph.results) - plain):
        raise document.at("operators").fail(
            f"overwrite storage {gone[0]} in a plain run, which outputs or results have"
        )


def _check_way(
    graph: Graph, variant: Implementation, row: Field, created: Callable[[int], bool]
) -> None:
    for place, storage in enumerate(variant.reads):
        if not created(storage):
            raise row.at("reads", place).wrong("a storage that an operator before it creates")
    if variant.overwrites is None:
        return
    over = row.at("overwrites")
    if variant.overwrites not in variant.reads or not variant.creates:
        raise over.wrong("one of 'reads', and something in 'creates'")
    old, new = graph.storages[variant.overwrites], graph.storages[variant.creates[0]]
    if old.nbytes != new.nbytes:
        raise over.fail(f"has {old.nbytes} bytes, its memory becomes one of {new.nbytes} bytes")


def _check_held(graph: Graph, document: Field, creator: dict[int, int]) -> None:
    for name, lasting in (("outputs", graph.outputs), ("results", graph.results)):
        for storage in sorted(lasting):
            by = creator.get(storage)
            if by is None or (name == "outputs" and by >= graph.forward_count):
                raise document.at(name).fail(
                    f"has storage {storage}, needs one that an operator "
                    f"{'of the forward pass ' * (name == 'outputs')}creates"
                )
            if any(
                storage not in variant.creates for variant in graph.operators[by].implementations
            ):
                raise document.at(name).fail(
                    f"has storage {storage}, which not all implementations of operators[{by}] "
                    "create"
                )
