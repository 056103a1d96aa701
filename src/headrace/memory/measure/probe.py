"""A stand-in for an attribute's value, in a trace that finds out whether `forward` uses it."""

from collections.abc import Hashable
from typing import Any, NoReturn

from headrace.memory.errors import CaptureError


class ValueProbe:
    """Raises an error at any use, but that an integer may be counted up.

    It says that it is of the value's type, so that `isinstance` decides as for the value. What asks
    for identity alone (`is None`) is not seen: values that are compared so are not to be replaced.

    Parameters
    ----------
    kind : type of the value.
    name : of the attribute.
    increment : what has been added.
    """

    __slots__ = ("increment", "kind", "name")

    def __init__(self, kind: type, name: Hashable, increment: int = 0) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "increment", increment)

    @property
    def __class__(self) -> Any:
        return object.__getattribute__(self, "kind")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        self._used()

    def __add__(self, other: Any) -> "ValueProbe":
        if self.kind is not int or type(other) is not int:
            self._used()
        return ValueProbe(int, self.name, self.increment + other)

    def __radd__(self, other: Any) -> "ValueProbe":
        return self + other

    def __sub__(self, other: Any) -> "ValueProbe":
        return self + (-other if type(other) is int else other)

    def _used(self, *_: object) -> NoReturn:
        raise CaptureError("the attribute is used")

    def __getattr__(self, name: str) -> NoReturn:
        self._used()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self._used()

    def __eq__(self, other: object) -> bool:
        self._used()

    def __ne__(self, other: object) -> bool:
        self._used()

    def __hash__(self) -> int:
        self._used()

    def __bool__(self) -> bool:
        self._used()

    def __repr__(self) -> str:
        self._used()

    def __str__(self) -> str:
        self._used()

    def __format__(self, spec: str) -> str:
        self._used()

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._used()


def is_probe(value: object) -> bool:
    """Return whether a value is a `ValueProbe`, which says otherwise of itself."""
    return type(value) is ValueProbe
