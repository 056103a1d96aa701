"""Types in public annotations that no facade offers, read without running the modules.

A facade is a module that declares ``__all__``. An annotation is public if it is of a name there: a
function's parameters and result; a class's public fields, properties and methods.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Definition = tuple[str, str]
"""The module that defines a name, and the name."""

_CALLED_BY_USERS = frozenset({"__init__", "__call__", "__enter__", "__getitem__", "__iter__"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ParsedModule:
    """A module as its source states it.

    Attributes
    ----------
    imported : a name that an import binds, anywhere in it -> what it is the name of.
    defined : a name at the module's top -> the statements that bind it.
    exported : its ``__all__``.
    """

    tree: ast.Module
    imported: dict[str, Definition]
    defined: dict[str, list[ast.stmt]]
    exported: tuple[str, ...]


def private_types(modules: Mapping[str, Path]) -> dict[Definition, list[str]]:
    """Return the types that facades do not offer -> the public names whose annotations have them.

    A type of `headrace._native` counts, too; types of other packages do not.
    """
    parsed = {name: parse(path) for name, path in modules.items()}
    public: dict[Definition, str] = {}
    for facade, module in parsed.items():
        for name in module.exported:
            public.setdefault(definition_of(parsed, (facade, name)), f"{facade}.{name}")
    private: defaultdict[Definition, list[str]] = defaultdict(list)
    for (name, defined), label in public.items():
        if name not in parsed:
            continue
        for statement in parsed[name].defined.get(defined, ()):
            for annotation in _annotations(statement):
                for used in _names(annotation):
                    definition = definition_of(parsed, (name, used))
                    if definition not in public and _is_type(parsed, definition):
                        private[definition].append(label)
    return {definition: sorted(set(labels)) for definition, labels in sorted(private.items())}


def parse(path: Path) -> ParsedModule:
    """Read a module, or a stub file, without running it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: dict[str, Definition] = {}
    defined: defaultdict[str, list[ast.stmt]] = defaultdict(list)
    exported: tuple[str, ...] = ()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                imported[alias.asname or alias.name] = (node.module, alias.name)
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=names):
                exported = tuple(ast.literal_eval(names))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                defined[name].append(statement)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                defined[name].append(statement)
            case _:
                pass
    return ParsedModule(tree, imported, dict(defined), exported)


def definition_of(parsed: Mapping[str, ParsedModule], place: Definition) -> Definition:
    """Return where a name comes from that a module has by import."""
    visited: set[Definition] = set()
    while place not in visited:
        visited.add(place)
        name, used = place
        if name not in parsed or used in parsed[name].defined:
            break
        place = parsed[name].imported.get(used, place)
    return place


def _is_type(parsed: Mapping[str, ParsedModule], definition: Definition) -> bool:
    name, used = definition
    if name not in parsed:
        return name.startswith("headrace.")
    return any(
        isinstance(statement, ast.ClassDef)
        or (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Subscript | ast.BinOp)
        )
        for statement in parsed[name].defined.get(used, ())
    )


def _annotations(statement: ast.stmt) -> Iterator[ast.expr]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _of_function(statement)
        case ast.ClassDef(body=body):
            for member in body:
                match member:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                        if not name.startswith("_"):
                            yield annotation
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        if not name.startswith("_") or name in _CALLED_BY_USERS:
                            yield from _of_function(member)
                    case _:
                        pass
        case ast.Assign(value=ast.Subscript() | ast.BinOp() as alias):
            yield alias
        case _:
            pass


def _of_function(function: _Function) -> Iterator[ast.expr]:
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += [variadic for variadic in (arguments.vararg, arguments.kwarg) if variadic]
    yield from (parameter.annotation for parameter in parameters if parameter.annotation)
    if function.returns is not None:
        yield function.returns


def _names(annotation: ast.expr) -> Iterator[str]:
    for node in ast.walk(annotation):
        match node:
            case ast.Name(id=name):
                yield name
            case ast.Constant(value=str() as text):
                with suppress(SyntaxError):  # an argument of Literal
                    yield from _names(ast.parse(text, mode="eval").body)
            case _:
                pass
