"""The public names of every facade, read from the sources without importing them."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from benchmarks.house.modules import source_modules
from benchmarks.house.public import Definition, ParsedModule, definition_of, parse
from docs.site.root import ROOT

_Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class PublicName:
    """A name that a facade offers.

    Attributes
    ----------
    facade, name : the module that declares it in its ``__all__``, and the name.
    definition : the module and the name that define it.
    statement : the class, function or assignment; the last one of an overloaded function.
    docstring : of the class or function, or the text below an assignment; empty if there is none.
    """

    facade: str
    name: str
    definition: Definition
    statement: ast.stmt
    docstring: str

    @property
    def full_name(self) -> str:
        """Facade and name."""
        return f"{self.facade}.{self.name}"

    @property
    def is_value(self) -> bool:
        """Whether it is neither a class nor a function."""
        return not isinstance(self.statement, _Documented)

    @property
    def is_alias(self) -> bool:
        """Whether it is a name for another type."""
        return isinstance(_assigned(self.statement), ast.Subscript | ast.BinOp)

    @property
    def is_literal(self) -> bool:
        """Whether it is a value that its source states, such as a number."""
        return isinstance(_assigned(self.statement), ast.Constant)


@dataclass(frozen=True)
class Sources:
    """The package's modules as their sources state them; the native module by its stub file."""

    modules: Mapping[str, ParsedModule]

    @classmethod
    def read(cls) -> "Sources":
        """Read the package."""
        package = ROOT / "src"
        paths = {
            **source_modules(package),
            "headrace._native": package / "headrace" / "_native.pyi",
        }
        return cls({module: parse(path) for module, path in paths.items()})

    @cached_property
    def public(self) -> tuple[PublicName, ...]:
        """Every name of every facade."""
        return tuple(
            self._public_name(facade, name)
            for facade, module in self.modules.items()
            for name in sorted(module.exported)
        )

    @cached_property
    def canonical(self) -> Mapping[Definition, str]:
        """The full name that a definition has in the reference, by its definition.

        It is that of the facade that the class itself names (`headrace.facades.offered_by`), else
        of the first one.
        """
        names: dict[Definition, str] = {}
        for public in self.public:
            if _offered_by(public.statement) == public.facade:
                names[public.definition] = public.full_name
            names.setdefault(public.definition, public.full_name)
        return names

    def _public_name(self, facade: str, name: str) -> PublicName:
        definition = definition_of(self.modules, (facade, name))
        module = self.modules.get(definition[0])
        statements = [] if module is None else module.defined.get(definition[1], [])
        if not statements:
            raise LookupError(f"{facade}: __all__ has {name!r}, which no module defines")
        statement = statements[-1]
        return PublicName(
            facade=facade,
            name=name,
            definition=definition,
            statement=statement,
            docstring=self._docstring(definition[0], statement),
        )

    def _docstring(self, module: str, statement: ast.stmt) -> str:
        if isinstance(statement, _Documented):
            return ast.get_docstring(statement) or ""
        body = self.modules[module].tree.body
        following = body[body.index(statement) + 1 :][:1]
        match following:
            case [ast.Expr(value=ast.Constant(value=str() as text))]:
                return text
            case _:
                return ""


def _assigned(statement: ast.stmt) -> ast.expr | None:
    """Return what a statement assigns."""
    return statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None


def _offered_by(statement: ast.stmt) -> str | None:
    for decorator in getattr(statement, "decorator_list", ()):
        match decorator:
            case ast.Call(
                func=ast.Name(id="offered_by" | "public_value" | "stored_value"),
                args=[ast.Constant(value=str() as facade), *_],
            ):
                return facade
            case _:
                pass
    return None
