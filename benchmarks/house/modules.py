"""Imports and definitions of the modules of `src`, read without running them."""

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from headrace.kinds import capabilities

Modules = Mapping[str, Path]


OUTSIDE = ("headrace.registration", "headrace.demo")
"""Modules that join capabilities, and so may look into them."""

_NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


def source_modules(source: Path) -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return all imports of a file: lazy ones and those for types, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path, modules: Modules) -> Iterator[str]:
    """Yield every module of the package that a file imports."""
    for node in import_statements(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        yield from (name for name in dict.fromkeys(names) if name in modules)


def cycles(modules: Modules) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or not."""
    numbers = {name: number for number, name in enumerate(modules)}
    pairs = np.array(
        [
            (numbers[name], numbers[other])
            for name, path in modules.items()
            for other in imports(path, modules)
            # a package may name its own modules, which load it first in any case
            if other != name and not other.startswith(f"{name}.")
        ]
    )
    ones = np.ones(len(pairs), dtype=np.int8)
    graph = csr_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(len(numbers), len(numbers)))
    _, component = connected_components(graph, connection="strong")
    names = np.array(list(modules))
    groups = [names[component == number].tolist() for number in np.unique(component)]
    return [group for group in groups if len(group) > 1]


def imports_into_capabilities(modules: Modules) -> list[tuple[str, str]]:
    """Return (importing module, inner module) wherever one goes past a capability's facade."""
    imported = {name: list(imports(path, modules)) for name, path in modules.items()}
    found: list[tuple[str, str]] = []
    for capability in capabilities():
        inside = f"headrace.{capability}."
        for name, names in imported.items():
            if f"{name}.".startswith((inside, *(f"{other}." for other in OUTSIDE))):
                continue
            found += [(name, other) for other in names if other.startswith(inside)]
    return found


def public_names(path: Path) -> Iterator[str]:
    """Yield the public classes, functions and type aliases that a module defines at its top."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found = [name]
            case ast.Assign(value=ast.Subscript() | ast.BinOp(), targets=targets):
                found = [target.id for target in targets if isinstance(target, ast.Name)]
                found = [name for name in found if name[0].isupper() and not name.isupper()]
            case _:
                found = []
        yield from (name for name in found if not name.startswith("_"))


def defined_twice(modules: Modules) -> dict[str, list[str]]:
    """Return the public names that more than one module defines, and these modules."""
    where: dict[str, list[str]] = {}
    for module, path in modules.items():
        for name in dict.fromkeys(public_names(path)):
            where.setdefault(name, []).append(module)
    return {name: found for name, found in sorted(where.items()) if len(found) > 1}


def long_functions(modules: Modules, lines: int) -> list[tuple[str, str, int]]:
    """Return (module, function, lines) of functions of more than `lines`, nested ones too."""
    found: list[tuple[str, str, int]] = []
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > lines:
                    found.append((module, node.name, length))
    return found


def code_lines(path: Path) -> int:
    """Return how many lines of a module hold code: no blank ones, comments or docstrings."""
    source = path.read_text(encoding="utf-8")
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(held)
