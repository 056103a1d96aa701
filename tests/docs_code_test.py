"""Code, commands and variables in the pages: names, arguments and options that headrace has."""

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace.cli.app import verbs
from headrace.settings import sections

ROOT = Path(__file__).parents[1]
OWN_MODULES = "adding-a-capability.md"
"""Page of a capability that does not exist; `tests.adding_test` runs its code."""
PAGES = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "benchmarks/**/README.md")
    for path in ROOT.glob(pattern)
    if path.name != OWN_MODULES
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"`headrace ([^`]+)`")
VARIABLE = re.compile(r"\bHEADRACE_[A-Z_]+")
MEMBER = re.compile(r"`([A-Z]\w*)\.([a-z_]\w*)")
NAME = re.compile(r"(?<![\w/.-])headrace(?:\.[A-Za-z_]\w*)+(?![\w*/-])")


def _resolved(name: str) -> object:
    """Return what a dotted name stands for; None for what is an attribute of values alone."""
    try:
        return pkgutil.resolve_name(name)
    except ImportError:
        raise AttributeError(name) from None


def _dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression, as headrace.index.open; else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def problems(code: str) -> Iterator[str]:
    """Yield names of headrace that do not exist, and arguments that its functions do not take."""
    tree = ast.parse(code)
    names: dict[str, str] = {"headrace": "headrace"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    for name in names.values():
        yield from _missing(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (text := _full(node, names)):
            yield from _missing(text)
        if isinstance(node, ast.Call) and (text := _full(node.func, names)):
            yield from _wrong_arguments(node, text)


def _full(node: ast.expr, names: dict[str, str]) -> str:
    first, _, further = _dotted(node).partition(".")
    return f"{names[first]}.{further}".removesuffix(".") if first in names else ""


def _missing(name: str) -> Iterator[str]:
    try:
        _resolved(name)
    except AttributeError:
        yield f"{name} does not exist"


def _wrong_arguments(call: ast.Call, name: str) -> Iterator[str]:
    try:
        signature = inspect.signature(_resolved(name))  # pyright: ignore[reportArgumentType]
    except (AttributeError, ValueError):
        return  # it is reported, or a builtin that has no signature
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    try:
        if starred or any(keyword.arg is None for keyword in call.keywords):
            signature.bind_partial(**keywords)
        else:
            signature.bind(*[None] * len(call.args), **keywords)
    except TypeError as error:
        yield f"{name}: {error}"


@cache
def _facades() -> dict[str, ModuleType]:
    """Return the facade of every public name; classes of torch with such a name are none."""
    packages = [part.name for part in pkgutil.iter_modules(headrace.__path__) if part.ispkg]
    modules = [headrace, *(import_module(f"headrace.{package}") for package in packages)]
    facades = {name: module for module in modules for name in getattr(module, "__all__", [])}
    del facades["ProcessGroup"]
    return facades


def _missing_members(text: str) -> Iterator[str]:
    for name, member in MEMBER.findall(text):
        facade = _facades().get(name)
        if facade is not None and not hasattr(getattr(facade, name), member):
            yield f"{name}.{member} does not exist"


@cache
def _options() -> dict[str, frozenset[str]]:
    """Return the options of every verb by its path."""
    return {
        path: frozenset(("--help", *(name for option in verb.params for name in option.opts)))
        | frozenset(name for option in verb.params for name in option.secondary_opts)
        for path, verb in verbs()
    }


def _wrong_commands(text: str) -> Iterator[str]:
    """Yield options that a command in the text does not have, and variables that nothing reads."""
    for command in COMMAND.findall(text):
        own = f"{command} ".partition(" -- ")[0]
        paths = [path for path in _options() if own.startswith(f"{path} ")]
        options = _options()[max(paths, key=len)] if paths else frozenset[str]()
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", own) if paths else ():
            if option not in options:
                yield f"headrace {command}: no option {option}"
    variables = {name for section in sections() for name, _ in section.variables().values()}
    for variable in VARIABLE.findall(text):
        if variable not in variables:
            yield f"{variable} is no setting"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_of_a_page_asks_for_what_headrace_offers(page: Path) -> None:
    text = page.read_text()
    assert [problem for block in BLOCK.findall(text) for problem in problems(block)] == []
    assert [problem for name in NAME.findall(text) for problem in _missing(name)] == []
    assert [*_missing_members(text), *_wrong_commands(text)] == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import headrace\nheadrace.index.opened('x')", "headrace.index.opened does not exist"),
        ("from headrace.memory import fitted", "headrace.memory.fitted does not exist"),
        ("from headrace.memory import fit\nfit(m, s, '6GiB', los=1)", "argument 'los'"),
        ("from headrace.memory import fit\nfit(m)", "missing a required argument: 'sample'"),
    ],
)
def test_a_name_or_an_argument_that_does_not_exist_is_a_problem(code: str, problem: str) -> None:
    assert problem in next(problems(code))


def test_a_member_an_option_or_a_variable_that_does_not_exist_is_a_problem() -> None:
    assert [*_missing_members("`Index.get_all` and `Index.find`")] == [
        "Index.get_all does not exist"
    ]
    text = "`headrace index plan x --budget 1` with HEADRACE_BUDGET, `headrace verify x`"
    assert [*_wrong_commands(text)] == [
        "headrace index plan x --budget 1: no option --budget",
        "HEADRACE_BUDGET is no setting",
    ]
