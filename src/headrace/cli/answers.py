"""Results of verbs as JSON: ``--json`` of every verb, and the schemas of what it prints.

A verb prints tables and returns a dataclass with the same figures, whose annotation makes the
schema. The document is ``{"verb": ..., "version": ..., "result": ...}``. A version changes when a
field is removed or changes its meaning; new fields may come without.
"""

import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from headrace.cli.console import tables_hidden
from headrace.files import without_infinities

_Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON for scripts; see headrace schema."),
]
_PARAMETER = "as_json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that a verb wrote."""

    path: str
    bytes: int

    @classmethod
    def at(cls, path: Path) -> "WrittenFile":
        """Return the file at a path."""
        return cls(path=str(path), bytes=path.stat().st_size)


_Result = TypeVar("_Result")


def result_of(kind: type[_Result], source: object, **values: Any) -> _Result:
    """Return a dataclass of values, and of a source's attributes for its other fields."""
    names = [field.name for field in fields(kind)]  # pyright: ignore[reportArgumentType]
    return kind(**{n: values[n] if n in values else getattr(source, n) for n in names})


def with_json(command: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return a verb with ``--json``, which ends with the exit code of its result, if that has one.

    Parameters
    ----------
    path : of the verb, such as "index plan".
    """
    signature = inspect.signature(command)
    if _PARAMETER in signature.parameters:
        return command  # a group may be loaded again

    @wraps(command)
    def run(*, as_json: bool = False, **arguments: Any) -> None:
        if as_json:
            with _json_alone():
                result = command(**arguments)
            if result is not None:
                sys.stdout.write(f"{document(path, command, result)}\n")
        else:
            result = command(**arguments)
        sys.stdout.flush()  # here a closed pipe and a full disk are still errors of the verb
        if code := getattr(result, "exit_code", 0):
            raise typer.Exit(code)

    option = inspect.Parameter(
        _PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Json
    )
    run.__annotations__ = {**command.__annotations__, _PARAMETER: _Json}
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    return run


@contextmanager
def _json_alone() -> Generator[None]:
    """Keep standard output for JSON: no tables, and what else is printed goes to standard error."""
    shown = tables_hidden.set(True)
    own = sys.__stdout__ if sys.stdout is sys.__stdout__ else None
    stdout = None if own is None else os.dup(1)  # of child processes and native code
    try:
        if own is not None:
            own.flush()
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        tables_hidden.reset(shown)
        if stdout is not None:
            os.dup2(stdout, 1)
            os.close(stdout)


def document(path: str, command: Callable[..., Any], result: Any) -> str:
    """Return the JSON of a verb's result: in ASCII, as file names may be no UTF-8."""
    from pydantic import TypeAdapter

    kind = result_type(command)
    plain = without_infinities(TypeAdapter[Any](kind).dump_python(result, mode="json"))
    return json.dumps({"verb": path, "version": _version(kind), "result": plain}, allow_nan=False)


def result_type(command: Callable[..., Any]) -> Any:
    """Return the type of a verb's result: what it returns where it returns anything."""
    kind = get_type_hints(command).get("return")
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not types.NoneType)
    return kind


def _version(kind: Any) -> int:
    return getattr(kind, "VERSION", 1)


def schema_of(path: str, command: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the JSON schema (draft 2020-12) of what a verb prints with ``--json``.

    Parameters
    ----------
    path, command : of the verb.
    """
    from pydantic import TypeAdapter

    kind = result_type(command)
    result = TypeAdapter[Any](kind).json_schema(mode="serialization")
    definitions = result.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"headrace {path} --json",
        "type": "object",
        "properties": {
            "verb": {"const": path},
            "version": {"const": _version(kind)},
            "result": result,
        },
        "required": ["verb", "version", "result"],
        "$defs": definitions,
    }
