"""A training step as operators on storages: what schedules are made for, simulated and verified on.

Operators are in the order in which they run once: the forward pass, then the backward pass. A
schedule (`headrace.memory.schedule`) may run those of the forward pass again.
"""

import re
from collections.abc import Mapping
from dataclasses import field

from headrace.facades import public_value


@public_value("headrace.memory")
class Storage:
    """Memory that an operator creates: an activation, a gradient, or a result of the step.

    Attributes
    ----------
    nbytes : as the allocator rounds it.
    """

    name: str
    nbytes: int


@public_value("headrace.memory")
class Implementation:
    """One way to compute an operator (4.4 of the paper).

    Attributes
    ----------
    name : such as ``default``, ``from output``, ``from signs``.
    time_us : of one run.
    workspace_bytes : allocated and freed while it runs, beside what it creates.
    reads, creates : indices of storages; of a backward operator what it reads depends on the
        implementation (D_k^l), of a forward operator what it creates can (signs of a ReLU).
    overwrites : a storage of `reads` whose memory becomes that of the first of `creates` (an
        operator in place), or None.
    reorders : whether results can differ from the default's by rounding.
    """

    name: str
    time_us: float
    workspace_bytes: int
    reads: tuple[int, ...]
    creates: tuple[int, ...]
    overwrites: int | None = None
    reorders: bool = False


@public_value("headrace.memory")
class Operator:
    """An operator of the forward or backward pass.

    Attributes
    ----------
    module : name of the module that it was traced in, or "".
    again : whether it may run more than once. Backward operators and forward operators with an
        effect that cannot be repeated may not.
    """

    name: str
    module: str
    again: bool
    implementations: tuple[Implementation, ...]

    @property
    def kind(self) -> str:
        """The name without its number."""
        return re.sub(r"(_\d+)+$", "", self.name)

    @property
    def place(self) -> str:
        """The name, and the module that it was traced in, in quotes."""
        return f"'{self.name}'" + (f" of module '{self.module}'" if self.module else "")


@public_value("headrace.memory")
class Graph:
    """A training step.

    Attributes
    ----------
    operators : in the order of a plain run; every storage that one reads was created before.
    forward_count : how many of them are the forward pass, the first ones.
    outputs : storages that the caller holds from the end of the forward pass to that of the step.
    results : storages that live to the end of the step: gradients of parameters and inputs.
    resident : bytes that are allocated all the time, by their contents: ``parameters``,
        ``buffers``, ``inputs``, ``optimizer``, ``gradients`` that are accumulated.
    """

    storages: tuple[Storage, ...]
    operators: tuple[Operator, ...]
    forward_count: int
    outputs: frozenset[int]
    results: frozenset[int]
    resident: Mapping[str, int] = field(default_factory=dict[str, int])

    def __repr__(self) -> str:
        return f"<Graph: {self.description}>"

    @property
    def description(self) -> str:
        """Numbers of operators and storages, in one line."""
        return f"{len(self.operators)} operators, {len(self.storages)} storages"

    @property
    def resident_bytes(self) -> int:
        """Sum of `resident`."""
        return sum(self.resident.values())

    def creators(self) -> dict[int, int]:
        """Return the operator that creates each storage."""
        return {
            storage: index
            for index, operator in enumerate(self.operators)
            for implementation in operator.implementations
            for storage in implementation.creates
        }

    def place_of(self, storage: int) -> str:
        """Return the name of a storage, and the module that creates it, in quotes."""
        creator = self.creators().get(storage)
        module = "" if creator is None else self.operators[creator].module
        name = f"'{self.storages[storage].name}'"
        return f"{name} of module '{module}'" if module else name
