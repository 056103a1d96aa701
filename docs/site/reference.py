"""Pages of the reference: one for each facade, with an entry of autodoc for each of its names."""

import ast
import enum
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

from docs.site.names import PublicName, Sources
from docs.site.restructured import directive, page_title

_UNTOLD_BASES = ("ABC", "Generic", "Protocol", "object")
"""Bases that say nothing to a reader."""


def reference_pages(sources: Sources) -> dict[str, str]:
    """Return the texts of the pages, in reStructuredText, by their paths in the site."""
    facades = sorted({public.facade for public in sources.public})
    pages = {_path(facade): "\n".join(_facade(sources, facade)) for facade in facades}
    toctree = [f"/{_path(facade).removesuffix('.rst')}" for facade in facades]
    lines = [
        *page_title("Reference"),
        "Every public name, by the module that it is imported from.",
        "",
        *directive("toctree", "", [":maxdepth: 1"], toctree),
    ]
    return {"reference/index.rst": "\n".join(lines), **pages}


def undocumented(sources: Sources) -> list[str]:
    """Return the public names without a docstring; a name for another type needs none."""
    return [
        public.full_name
        for public in sources.public
        if not public.docstring and not public.name.startswith("__") and not public.is_alias
    ]


def told_bases(documented: type) -> list[type]:
    """Return the bases that a class's entry names: public ones, and those of other packages."""
    return [
        base
        for base in documented.__bases__
        if base.__name__ not in _UNTOLD_BASES and not _is_private(base)
    ]


def is_constant(name: str, member: Any) -> bool:
    """Return whether a public attribute's value says what it is, as enumerations' members do."""
    return not name.startswith("_") and isinstance(member, enum.Enum | bool | int | float | str)


def _is_private(base: type) -> bool:
    return base.__module__.startswith("headrace") and base not in _public_classes()


@cache
def _public_classes() -> frozenset[type]:
    values = (_value(public) for public in Sources.read().public)
    return frozenset(value for value in values if isinstance(value, type))


def _value(public: PublicName) -> Any:
    return pkgutil.resolve_name(f"{public.facade}:{public.name}")


def _path(facade: str) -> str:
    return f"reference/{facade}.rst"


def _facade(sources: Sources, facade: str) -> Iterator[str]:
    yield from page_title(facade)
    yield from directive("automodule", facade, [":no-members:"])
    for public in sources.public:
        if public.facade == facade:
            yield from _entry(sources, public)


def _entry(sources: Sources, public: PublicName) -> list[str]:
    canonical = sources.canonical[public.definition]
    if canonical != public.full_name:
        return directive("py:data", public.name, content=[f"The same as `{canonical}`."])
    match public.statement:
        case ast.ClassDef():
            return _class(public)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return directive("autofunction", public.full_name)
        case _:
            shows_value = public.is_alias or public.is_literal
            return directive("autodata", public.full_name, [] if shows_value else [":no-value:"])


def _class(public: PublicName) -> list[str]:
    documented: type = _value(public)
    kind = "autoexception" if issubclass(documented, BaseException) else "autoclass"
    # methods of private bases are the class's own for a reader; others have entries elsewhere
    bases = [base for base in documented.__mro__[1:] if not _is_private(base)]
    # autodoc asks whether the class is one of a named base, which protocols refuse to tell
    elsewhere = [base.__name__ for base in bases if not getattr(base, "_is_protocol", False)]
    options = [f":inherited-members: {', '.join(elsewhere)}"]
    # which the hook for members would keep (`docs.site.hooks`)
    members = [member for base in bases for member in vars(base).items()]
    if constants := {name for name, member in members if is_constant(name, member)}:
        options += [f":exclude-members: {', '.join(sorted(constants))}"]
    options += [":show-inheritance:"] if told_bases(documented) else []
    return directive(kind, public.full_name, options)
