"""Pages of the reference: a page for each facade, with an entry for each of its names."""

import ast
from collections.abc import Iterator

from docs.site.docstrings import page_title, rst
from docs.site.names import Function, PublicName, Sources
from docs.site.signatures import of_class, of_function, type_of

_SHOWN = frozenset({"__call__", "__enter__", "__getitem__", "__iter__"})
"""Special methods with an entry, where they have a docstring."""


def reference_pages(sources: Sources) -> dict[str, str]:
    """Return the texts of the pages, in reStructuredText, by their paths in the site."""
    facades = sorted({public.facade for public in sources.public})
    pages = {_path(facade): "\n".join(_facade(sources, facade)) for facade in facades}
    toctree = [f"    /{_path(facade).removesuffix('.rst')}" for facade in facades]
    lines = [
        *page_title("Reference"),
        "Every public name, by the module that it is imported from.",
        "",
    ]
    lines += [".. toctree::", "    :maxdepth: 1", "", *toctree, ""]
    return {"reference/index.rst": "\n".join(lines), **pages}


def undocumented(sources: Sources) -> list[str]:
    """Return the public names without a docstring; a name for another type needs none."""
    return [
        public.full_name
        for public in sources.public
        if not public.docstring and not public.name.startswith("__")
        if not _is_alias(public.statement)
    ]


def _path(facade: str) -> str:
    return f"reference/{facade}.rst"


def _facade(sources: Sources, facade: str) -> Iterator[str]:
    yield from page_title(facade)
    yield f".. py:module:: {facade}"
    yield ""
    yield from rst(ast.get_docstring(sources.modules[facade].tree) or "")
    for public in sources.public:
        if public.facade == facade:
            yield from _entry(sources, public)


def _entry(sources: Sources, public: PublicName) -> Iterator[str]:
    canonical = sources.canonical[public.definition]
    module, statement = public.definition[0], public.statement
    if canonical != public.full_name:
        yield from _directive("data", public.name, [f"The same as `{canonical}`."])
    elif isinstance(statement, ast.ClassDef):
        yield from _class(sources, public)
    elif isinstance(statement, Function):
        signature = of_function(sources, module, statement)
        yield from _directive("function", f"{public.name}{signature}", rst(public.docstring))
    else:
        yield from _directive("data", public.name, _value(sources, module, statement, public))


def _value(sources: Sources, module: str, statement: ast.stmt, public: PublicName) -> list[str]:
    value = getattr(statement, "value", None)
    if _is_alias(statement):
        text = type_of(sources, module, value)
        return [*rst(public.docstring), f"Stands for ``{text}``.", ""]
    if isinstance(value, ast.Constant):
        return [f"``{ast.unparse(value)}``", "", *rst(public.docstring)]
    return rst(public.docstring)


def _is_alias(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(
        statement.value, ast.Subscript | ast.BinOp
    )


def _class(sources: Sources, public: PublicName) -> Iterator[str]:
    module, statement = public.definition[0], public.statement
    assert isinstance(statement, ast.ClassDef)
    members: list[str] = []
    bases = [
        sources.canonical[base]
        for base, _ in sources.bases(module, statement)
        if base in sources.canonical
    ]
    if bases:
        members += ["Bases: " + ", ".join(f"`{base}`" for base in bases), ""]
    members += rst(public.docstring)
    for owner, member in _members(sources, module, statement):
        members += _member(sources, owner, member)
    kind = "exception" if _is_exception(sources, module, statement) else "class"
    signature = of_class(sources, module, statement)
    yield from _directive(kind, f"{public.name}{signature}", members)


def _members(
    sources: Sources, module: str, statement: ast.ClassDef
) -> Iterator[tuple[str, ast.stmt]]:
    """Yield (module, member) of a class and of its bases that are not public, the former first."""
    names: set[str] = set()
    classes = [(module, statement)]
    while classes:
        owner, defining = classes.pop(0)
        for member in {_name(member): member for member in defining.body}.values():
            if (name := _name(member)) and name not in names:
                names.add(name)
                yield owner, member
        classes += [
            (definition[0], base)
            for definition, base in sources.bases(owner, defining)
            if definition not in sources.canonical
        ]


def _name(member: ast.stmt) -> str:
    match member:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name if not name.startswith("_") or name in _SHOWN else ""
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant() | ast.Call()):
            return "" if name.startswith("_") else name
        case _:
            return ""


def _member(sources: Sources, module: str, member: ast.stmt) -> Iterator[str]:
    if isinstance(member, Function):
        docstring = ast.get_docstring(member)
        if docstring is None:
            return
        decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
        if decorators & {"property", "cached_property"}:
            options = []
            if member.returns is not None:
                options = [f":type: {type_of(sources, module, member.returns)}"]
            yield from _directive("property", member.name, rst(docstring), options)
            return
        kinds = {"classmethod", "staticmethod"} & decorators
        bound = "staticmethod" not in decorators
        signature = of_function(sources, module, member, bound=bound)
        options = [f":{kind}:" for kind in kinds]
        yield from _directive("method", f"{member.name}{signature}", rst(docstring), options)
    elif isinstance(member, ast.Assign):
        value = f":value: {ast.unparse(member.value)}"
        yield from _directive("attribute", _name(member), [], [value])


def _is_exception(sources: Sources, module: str, statement: ast.ClassDef) -> bool:
    if any(isinstance(base, ast.Name) and base.id == "Exception" for base in statement.bases):
        return True
    return any(
        _is_exception(sources, definition[0], base)
        for definition, base in sources.bases(module, statement)
    )


def _directive(
    kind: str, signature: str, content: list[str], options: list[str] | None = None
) -> Iterator[str]:
    yield f".. py:{kind}:: {signature}"
    yield from (f"    {option}" for option in options or ())
    yield ""
    yield from (f"    {line}".rstrip() for line in content)
    yield ""
