"""Signatures of classes and functions, with public types by their full names."""

import ast
import copy
from collections.abc import Iterator
from contextlib import suppress

from docs.site.names import Function, Sources


def of_function(sources: Sources, module: str, function: Function, *, bound: bool = False) -> str:
    """Return parameters and result; without the first parameter of a `bound` method."""
    arguments = copy.deepcopy(function.args)
    if bound:
        (arguments.posonlyargs or arguments.args)[:1] = []
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            argument.annotation = _qualified(sources, module, argument.annotation)
    result = ""
    if function.returns is not None:
        result = f" -> {ast.unparse(_qualified(sources, module, function.returns))}"
    return f"({ast.unparse(arguments)}){result}"


def of_class(sources: Sources, module: str, statement: ast.ClassDef) -> str:
    """Return the parameters of a class: those of `__init__`, or the fields of a dataclass."""
    for owner, defining in _with_bases(sources, module, statement):
        for member in defining.body:
            if isinstance(member, Function) and member.name == "__init__":
                return of_function(sources, owner, member, bound=True).removesuffix(" -> None")
        if _is_dataclass(defining):
            return (
                f"(*, {', '.join(fields)})" if (fields := _fields(sources, owner, defining)) else ""
            )
    return ""


def type_of(sources: Sources, module: str, annotation: ast.expr) -> str:
    """Return an annotation's text."""
    return ast.unparse(_qualified(sources, module, annotation))


def _with_bases(
    sources: Sources, module: str, statement: ast.ClassDef
) -> Iterator[tuple[str, ast.ClassDef]]:
    yield module, statement
    for (owner, _), base in sources.bases(module, statement):
        yield from _with_bases(sources, owner, base)


def _is_dataclass(statement: ast.ClassDef) -> bool:
    names = [
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in statement.decorator_list
    ]
    dataclasses = {"dataclass", "public_value", "stored_value"}
    return any(isinstance(name, ast.Name) and name.id in dataclasses for name in names)


def _fields(sources: Sources, module: str, statement: ast.ClassDef) -> list[str]:
    fields: dict[str, str] = {}
    for owner, defining in reversed(list(_with_bases(sources, module, statement))):
        for member in defining.body:
            match member:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    text = type_of(sources, owner, annotation)
                    if not name.startswith("_") and not text.startswith("ClassVar"):
                        fields[name] = f"{name}: {text}{_default(value)}"
                case _:
                    pass
    return list(fields.values())


def _default(value: ast.expr | None) -> str:
    match value:
        case None:
            return ""
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            options = {keyword.arg: keyword.value for keyword in keywords}
            if "default" in options:
                return f"={ast.unparse(options['default'])}"
            return "=..." if "default_factory" in options else ""
        case _:
            return f"={ast.unparse(value)}"


class _Qualify(ast.NodeTransformer):
    def __init__(self, sources: Sources, module: str) -> None:
        self._sources, self._module = sources, module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        definition = self._sources.resolve(self._module, node.id)
        full_name = self._sources.canonical.get(definition)
        return node if full_name is None else ast.parse(full_name, mode="eval").body

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str):
            with suppress(SyntaxError):  # an argument of Literal
                return self.visit(ast.parse(node.value, mode="eval").body)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
                return self.visit(first)
            case ast.Subscript(value=ast.Name(id="Literal")):
                return node
            case _:
                self.generic_visit(node)
                return node


def _qualified(sources: Sources, module: str, annotation: ast.expr) -> ast.expr:
    return _Qualify(sources, module).visit(copy.deepcopy(annotation))
