"""Typed reading of the fields of JSON documents, stricter than JSON.

Every function returns its argument in the wanted type or raises TypeError with the value found;
`Field`, or the caller, adds the file and the field. Python's own conversions would take 0.9 for
rank 0 and a string for a list of letters.
"""

import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from headrace.errors import InputError

__all__ = [
    "Field",
    "boolean",
    "conform",
    "integer",
    "items",
    "number",
    "shown",
    "table",
    "text",
]

_T = TypeVar("_T")
_REQUIRED: Any = object()

_SHOWN = 200
"""Limit of characters of a value in a message: a file can hold a million of them."""


def shown(node: Any) -> str:
    """Return a value for a message, truncated if it is long."""
    text = repr(node)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def integer(node: Any) -> int:
    """Return an integer; raises TypeError for others, true and 1.0 included."""
    if isinstance(node, bool):
        raise TypeError(f"{shown(node)} is not an integer")
    try:
        return operator.index(node)
    except TypeError as error:
        raise TypeError(f"{shown(node)} is not an integer") from error


def number(node: Any) -> float:
    """Return a number; raises TypeError for others, true, None and text included."""
    if isinstance(node, bool | str | bytes):
        raise TypeError(f"{shown(node)} is not a number")
    try:
        return float(node)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{shown(node)} is not a number") from error


def boolean(node: Any) -> bool:
    """Return a boolean; raises TypeError for others, 0 and 1 included."""
    if isinstance(node, bool):
        return node
    import numpy as np  # only for what is not Python's: nearly nothing

    if isinstance(node, np.bool_):
        return bool(node)
    raise TypeError(f"{shown(node)} is not true or false")


def text(node: Any) -> str:
    """Return a text; raises TypeError for others, numbers included."""
    if not isinstance(node, str):
        raise TypeError(f"{shown(node)} is not a text")
    return node


def items(node: Any) -> list[Any]:
    """Return a list; raises TypeError for others, text included."""
    if not isinstance(node, list | tuple):
        raise TypeError(f"{shown(node)} is not a list")
    return list(node)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def table(node: Any) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(node, Mapping):
        raise TypeError(f"{shown(node)} is not an object")
    return node  # pyright: ignore[reportUnknownVariableType]


def conform(value: Any, error: type[InputError] = InputError) -> None:
    """Give the numbers of a frozen dataclass the types that its fields declare.

    Its `__post_init__` calls this first.

    Python takes an integer for a float, and NumPy has number types of its own. JSON, and so the
    digest of an artifact, tells 46 from 46.0; arithmetic in NumPy's float32 is not precise enough
    for searches. With the types of what is read from a file, a value has the same digest before
    and after. Numbers alone, in tuples and in mappings are converted; other fields are left as
    they are.

    Raises
    ------
    error : for what is no number, naming the field.
    """
    for name, convert in _conversions(type(value)).items():
        current = getattr(value, name)
        try:
            converted = convert(current)
        except TypeError as failure:
            raise error(f"{name}: {failure}") from failure
        if converted is not current:
            object.__setattr__(value, name, converted)


_SCALARS: Mapping[Any, Callable[[Any], Any]] = {float: number, int: integer, bool: boolean}


@cache
def _conversions(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Return the conversion of every field of numbers, by its name."""
    hints = get_type_hints(kind)
    conversions = {name: _conversion(hints[name]) for name in kind.__dataclass_fields__}
    return {name: convert for name, convert in conversions.items() if convert is not None}


def _conversion(declared: Any) -> Callable[[Any], Any] | None:
    if declared in _SCALARS:
        return _SCALARS[declared]
    origin, parts = get_origin(declared), get_args(declared)
    if origin is UnionType and NoneType in parts and len(parts) == 2:
        inner = _conversion(next(part for part in parts if part is not NoneType))
        return inner and (lambda number: None if number is None else inner(number))
    if origin is tuple and parts[1:] == (Ellipsis,):
        inner = _conversion(parts[0])
        return inner and (lambda numbers: tuple(map(inner, numbers)))
    if origin is Mapping:
        inner = _conversion(parts[1])
        return inner and (lambda numbers: {key: inner(entry) for key, entry in numbers.items()})
    return None


class Field:
    """A value in a document, and its path there; errors name the file and the path.

    Parameters
    ----------
    found : the value: the whole document, for an empty path.
    source : the file, for messages.
    error : class of what is raised.
    """

    __slots__ = ("error", "found", "path", "source")

    def __init__(
        self, node: Any, source: str, error: type[InputError] = InputError, path: str = ""
    ) -> None:
        self.found, self.source, self.error, self.path = node, source, error, path

    def fail(self, problem: str) -> InputError:
        """Return the error with this problem ("is missing", "is 3, needs 4")."""
        where = f"field '{self.path}' " if self.path else ""
        return self.error(f"{self.source}: {where}{problem}")

    def wrong(self, needs: str) -> InputError:
        """Return the error about a value that is not what it needs to be."""
        state = "is missing" if self.found is None else f"is {shown(self.found)}"
        return self.fail(f"{state}, needs {needs}")

    def holding(self, node: Any) -> "Field":
        """Return another value at the same place."""
        return Field(node, self.source, self.error, self.path)

    def read(self, kind: Callable[[Any], _T], needs: str = "") -> _T:
        """Return the value as `kind` reads it: a function of this module, or one that raises alike.

        `needs` describes the value where its parts are read too.
        """
        try:
            return kind(self.found)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            where = f": field '{self.path}'" if self.path else ""
            needed = f" needs {needs}" if needs else ""
            raise self.error(f"{self.source}{where}{needed}: {problem}") from error

    def at(self, *keys: str | int, default: Any = _REQUIRED) -> "Field":
        """Return the value inside this one at a path of names and places in lists.

        Where a part of the path is missing it is `default`, or an error without one.
        """
        here = self
        values: Any
        for key in keys:
            if isinstance(key, int):
                values = here.read(items)
                there, missing = f"{here.path}[{key}]", key >= len(values)
            else:
                values = here.read(table)
                there, missing = f"{here.path}.{key[:_SHOWN]}".removeprefix("."), key not in values
            node = default if missing else values[key]
            here = Field(node, self.source, self.error, there)
            if missing and default is _REQUIRED:
                raise here.fail("is missing")
            if missing:
                break
        return here

    def items(self) -> list["Field"]:
        """Return the values of a list."""
        return [
            Field(node, self.source, self.error, f"{self.path}[{index}]")
            for index, node in enumerate(self.read(items))
        ]

    def allow(self, *names: str) -> None:
        """Refuse an object with other fields than these: mostly spelling mistakes."""
        for name in self.read(table):
            if name not in names:
                raise self.at(name).fail(f"is unknown, needs one of {', '.join(names)}")

    def text(self) -> str:
        """Return a text."""
        return self.read(text)

    def integer(self, least: int, most: int) -> int:
        """Return an integer within limits."""
        value = self.read(integer)
        if not least <= value <= most:
            raise self.wrong(f"{least} to {most}")
        return value
