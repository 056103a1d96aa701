"""Further implementations of the operators of a captured step (4.4 of the MONeT paper).

`headrace.memory.operators` finds them in the joint graph; here they become implementations on
storages, and calls that the executor runs. Each backward operator runs once, so one that is the
last to read a gradient overwrites it wherever it can: no choice is left there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch.fx import Node
from torch.fx.node import map_aggregate

from headrace.memory.exactness import Exactness
from headrace.memory.graph import Implementation, Storage
from headrace.memory.measure.captured import Capture, Stored, TracedCall
from headrace.memory.measure.read import is_training_batch_norm
from headrace.memory.measure.sizes import rounded_bytes, tensors_of
from headrace.memory.operators import (
    Creation,
    Intermediate,
    Variant,
    bfloat16_store,
    copy_variants,
    host_store,
    variants,
)
from headrace.memory.operators.copies import CopyStore
from headrace.memory.operators.variant import communicates


def with_implementations(
    capture: Capture, exactness: Exactness = Exactness.EXACT, *, offload: bool = False
) -> Capture:
    """Return the capture with further implementations of its operators.

    Parameters
    ----------
    exactness : of which they may be, and those nearer to the default (`Exactness.included`).
        Conditional ones raise an `ImplementationError` in a step where their condition fails.
    offload : whether activations may be stored in the host's memory. On the CPU that is a stand-in
        for a device's, whose steps can be tested: the copies take the same memory.
    """
    offered: list[Mapping[Node, Iterable[Variant]]] = [variants(capture.fx, exactness)]
    device = next(tensor.device for node in capture.fx.nodes for tensor in tensors_of(node))
    if exactness is Exactness.LOSSY:
        offered.append(_copy_variants(capture, bfloat16_store(device)))
    if offload:
        offered.append(_copy_variants(capture, host_store(device)))
    additions = _Additions(capture)
    for index, node in enumerate(capture.nodes):
        if node is not None:
            for variants_of in offered:
                for variant in variants_of.get(node, ()):
                    additions.add(index, node, variant)
    return additions.capture()


def _copy_variants(capture: Capture, store: CopyStore) -> dict[Node, list[Variant]]:
    """Return variants with copies of what the caller does not hold anyway."""
    count = capture.graph.forward_count
    root: dict[Node, Node] = {}
    for node, storage in capture.storage_of.items():
        base, index = capture.bases[storage]
        if not index and storage not in capture.retained.union(capture.graph.outputs):
            root[node] = base
    nodes = [node if node and not communicates(node.target) else None for node in capture.nodes]
    forward = [node for node in nodes[:count] if node and not is_training_batch_norm(node)]
    backward = [node for node in nodes[count:] if node]
    return copy_variants(store, forward, backward, root)


class _Additions:
    def __init__(self, capture: Capture) -> None:
        self.of = capture
        self.storages = list(capture.graph.storages)
        self.examples = dict(capture.examples)
        self.fills = dict(capture.fills)
        self.hosted = set(capture.hosted)
        self.intermediates: dict[Intermediate, int] = {}
        self.outputs = {base: storage for storage, base in enumerate(capture.bases)}
        self.offered: list[list[tuple[Implementation, TracedCall | None]]] = [
            [(operator.implementations[0], None)] for operator in capture.graph.operators
        ]

    def add(self, index: int, node: Node, variant: Variant) -> None:
        """Add a variant, unless it overwrites what is to stay."""
        overwrites = None
        if isinstance(variant.overwrites, Intermediate):  # no other operator reads it
            overwrites = self._intermediate(variant.overwrites)
        elif variant.overwrites is not None:
            overwrites = self.of.storage_of.get(variant.overwrites)
            if overwrites is None or not self._may_go(overwrites, variant):
                return
        call = TracedCall(
            target=variant.target,
            args=tuple(map_aggregate(variant.args, self._argument)),
            outputs=tuple(self._created(node, creation) for creation in variant.creates),
            draws=index in self.of.random,
        )
        implementation = Implementation(
            name=variant.name,
            time_us=0.0,
            workspace_bytes=0,
            reads=self._reads(variant),
            creates=call.outputs,
            overwrites=overwrites,
            reorders=variant.exactness is not Exactness.EXACT,
        )
        self.offered[index].append((implementation, call))

    def capture(self) -> Capture:
        """Return the capture with what was added."""
        readers: dict[int, int] = {}
        for index, pairs in enumerate(self.offered):
            readers.update(
                (storage, index) for implementation, _ in pairs for storage in implementation.reads
            )
        for index in range(self.of.graph.forward_count, len(self.offered)):
            self.offered[index] = list(self._last_reads(index, self.offered[index], readers))
        operators = tuple(
            replace(
                operator,
                implementations=tuple(implementation for implementation, _ in pairs),
            )
            for operator, pairs in zip(self.of.graph.operators, self.offered, strict=True)
        )
        calls = {
            (index, number): call
            for index, pairs in enumerate(self.offered)
            for number, (_, call) in enumerate(pairs)
            if call is not None
        }
        graph = replace(self.of.graph, storages=tuple(self.storages), operators=operators)
        return replace(
            self.of,
            graph=graph,
            calls=calls,
            examples=self.examples,
            fills=self.fills,
            hosted=frozenset(self.hosted),
        )

    def _last_reads(
        self,
        index: int,
        pairs: list[tuple[Implementation, TracedCall | None]],
        readers: dict[int, int],
    ) -> Iterable[tuple[Implementation, TracedCall | None]]:
        """Yield the implementations, those in place instead of the same ones out of place."""
        in_place = {
            implementation.name.removesuffix("in place").strip() or "default": (
                implementation,
                call,
            )
            for implementation, call in pairs
            if implementation.name.endswith("in place")
            and implementation.overwrites is not None
            and readers[implementation.overwrites] == index
            and self._creator(implementation.overwrites) > self.of.graph.forward_count
        }
        replaced = {id(implementation) for implementation, _ in in_place.values()}
        for implementation, call in pairs:
            if id(implementation) not in replaced:
                yield in_place.get(implementation.name, (implementation, call))

    def _creator(self, storage: int) -> int:
        creator = self.of.bases[storage][0]
        return next((i for i, node in enumerate(self.of.nodes) if node is creator), -1)

    def _may_go(self, storage: int, variant: Variant) -> bool:
        """Return whether a storage may be overwritten: it is neither kept nor the caller's."""
        graph = self.of.graph
        if storage in graph.outputs or storage in graph.results or self._creator(storage) < 0:
            return False
        sharing = [
            operand
            for operand in variant.reads
            if isinstance(operand, Node) and self.of.storage_of.get(operand) == storage
        ]
        return sharing == [variant.overwrites]

    def _argument(self, value: Any) -> Any:
        return Stored(self._intermediate(value)) if isinstance(value, Intermediate) else value

    def _created(self, node: Node, creation: Creation) -> int:
        if isinstance(creation, Intermediate):
            return self._intermediate(creation)
        single = self.outputs.get((node, None))
        return self.outputs[node, creation] if single is None else single

    def _intermediate(self, value: Intermediate) -> int:
        if value not in self.intermediates:
            self.intermediates[value] = index = len(self.storages)
            name = f"{value.node.name} {value.name}"
            nbytes = 0 if value.on_host else rounded_bytes(value.value)
            self.storages.append(Storage(name=name, nbytes=nbytes))
            if value.on_host:
                self.hosted.add(index)
            self.examples[index] = value.value
            if value.fill:
                self.fills[index] = value.fill
        return self.intermediates[value]

    def _reads(self, variant: Variant) -> tuple[int, ...]:
        storages = [
            self._intermediate(operand)
            if isinstance(operand, Intermediate)
            else self.of.storage_of.get(operand)
            for operand in variant.reads
        ]
        return tuple(dict.fromkeys(storage for storage in storages if storage is not None))
