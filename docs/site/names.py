"""The public names of every facade, read from the sources without importing them."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from benchmarks.house.modules import source_modules
from benchmarks.house.public import Definition, ParsedModule, definition_of, parse
from docs.site.root import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef


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

    def resolve(self, module: str, name: str) -> Definition:
        """Return where a name of a module is defined."""
        return definition_of(self.modules, (module, name))

    def bases(self, module: str, statement: ast.ClassDef) -> list[tuple[Definition, ast.ClassDef]]:
        """Return the bases of a class that the package defines."""
        bases: list[tuple[Definition, ast.ClassDef]] = []
        for base in statement.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(named, ast.Name):
                definition = self.resolve(module, named.id)
                base_class = self.statement(definition)
                if isinstance(base_class, ast.ClassDef):
                    bases.append((definition, base_class))
        return bases

    def statement(self, definition: Definition) -> ast.stmt | None:
        """Return the last statement that defines a name; None if the package does not."""
        module, name = definition
        if module not in self.modules:
            return None
        statements = self.modules[module].defined.get(name)
        return statements[-1] if statements else None

    def _public_name(self, facade: str, name: str) -> PublicName:
        definition = self.resolve(facade, name)
        statement = self.statement(definition)
        if statement is None:
            raise LookupError(f"{facade}: __all__ has {name!r}, which no module defines")
        return PublicName(
            facade=facade,
            name=name,
            definition=definition,
            statement=statement,
            docstring=self._docstring(definition[0], statement),
        )

    def _docstring(self, module: str, statement: ast.stmt) -> str:
        if isinstance(statement, ast.ClassDef | Function):
            return ast.get_docstring(statement) or ""
        body = self.modules[module].tree.body
        following = body[body.index(statement) + 1 :][:1]
        match following:
            case [ast.Expr(value=ast.Constant(value=str() as text))]:
                return text
            case _:
                return ""


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
