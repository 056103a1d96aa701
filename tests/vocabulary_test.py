"""The words of the field: names, docstrings, comments and messages use standard terms.

Four rules, over `src`, `native`, the README and `docs/` (quotations in backticks apart there):

- a docstring does not open with Who, What, Whether or How;
- no text uses a word of `NO_TEXT`, which stands for a person or is the project's own invention;
- no name uses a word of `NO_NAME`: ordinary words, which text may use;
- no module and no class uses a word of `NO_MODULE`.

Names in formats keep their words: `FORMATS` lists them.
``python -m tests.vocabulary_test [PATH...]`` prints what breaks a rule.

Two more counts are bars of ``make bench CLAIM=house``: `placeholder_share` of the names that a
package binds, and `banned_phrases` in texts. ``python -m tests.vocabulary_test --placeholders
[PATH...]`` and ``--phrases`` print their places.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ("README.md", "docs/**/*.md")
SOURCES = ("src/**/*.py", "native/**/*.hpp", "native/**/*.cpp")

OPENINGS = re.compile(r"\s*(who|what|whether|how)\b", re.IGNORECASE)
_PERSONS = r"who|whom|whoever|somebody|everybody|nobody"
_INVENTED = (
    r"makers?|entrants?|synthesi[sz]ers?|meetings?|crowds?|tournaments?|foreseen?|foresees|foresaw"
    r"|guests?|strangers?|tastes?|sloth|forgiv(?:e|es|en|ing)|forgave"
)
NO_TEXT = re.compile(rf"\b({_PERSONS}|{_INVENTED})\b", re.IGNORECASE)
NO_NAME = re.compile(
    rf"({_PERSONS}|{_INVENTED}|conversations?|lends?|lent|lending|lenders?|borrow(?:s|ed|ing|er)?"
    r"|loans?|loaned|patien(?:ce|t)|circles?|quiet|quietly|looks|worth|believ(?:e|es|ed)|beliefs?"
    r"|settl(?:e|es|ed|ing)|says?|said|hears?|heard|by_hand)"
)
NO_MODULE = re.compile(r"(placed|images?|census|shapes?|places?)")

PLACEHOLDERS = frozenset(
    [
        "found",
        "made",
        "each",
        "known",
        "given",
        "kept",
        "way",
        "one",
        "other",
        "held",
        "wanted",
        "chosen",
        "whole",
        "rest",
    ]
)
"""Names that do not say what their value is in the domain."""

GENERIC = frozenset(["item", "entry", "value", "result", "data", "current", "obj", "tmp"])
"""Names that would replace `PLACEHOLDERS` without telling more: counted with them."""

PHRASES = re.compile(
    r"Return what\b|\bthose\s+of\s+before\b|\bof\s+then\b|\b(?:is|are)\s+there\b"
    r"|\bone\s+and\s+the\s+other\b|\bso\s+that\s+nothing\s+is\s+lost\b"
)
"""Phrases for which the field has a word: live, resident, exists, earlier gradients, ..."""

FORMATS: dict[str, str] = {
    "maker": "a field of plans",
    "settled": "an event of the adaptation log",
    "tournament_us": "a setting in the provenance of profiles",
    "crowd_us": "a setting in the provenance of profiles",
    "quiet_us": "a setting in the provenance of profiles",
    "second_looks": "a setting in the provenance of profiles",
}
"""Words that may stand, in quotes or as a name, where a format has them -> which format."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CPP_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_CPP_NAME = re.compile(r"[A-Za-z_]\w*")
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


class Found(NamedTuple):
    """One word that breaks a rule."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        place = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{place}:{self.line}: {self.problem}"


def words_of(name: str) -> str:
    """Return the words of an identifier in lower case, joined by underscores."""
    return "_".join(_WORD.findall(name)).lower()


@cache
def _name_problem(kind: str, name: str) -> str | None:
    if name in FORMATS:
        return None
    words = words_of(name)
    for rule in (NO_NAME, NO_MODULE) if kind in ("module", "class") else (NO_NAME,):
        match = re.search(rf"(?:^|_){rule.pattern}(?=_|$)", words)
        if match:
            return f"{kind} {name!r}: {match.group(1)!r} is retired as a name"
    return None


def _text_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line within `text`, from 0, and the problem."""
    for match in NO_TEXT.finditer(text):
        if match.group(0) in FORMATS and text == match.group(0):
            continue
        yield text.count("\n", 0, match.start()), f"{match.group(0)!r} is retired"


def _python_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str, int]]:
    for node in nodes:
        match node:
            case ast.ClassDef():
                yield "class", node.name, node.lineno
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        yield "field", field.target.id, field.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield "function", node.name, node.lineno
                arguments = node.args
                for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    yield "parameter", one.arg, one.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield "field", node.attr, node.lineno
            case _:
                pass


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
        else:
            continue
        for statement in body:  # those of fields, too
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield text, statement.lineno
                case _:
                    pass


def _in_python(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    nodes = [*ast.walk(ast.parse(source))]
    problem = _name_problem("module", path.stem)
    if problem:
        yield 1, problem
    for kind, name, line in _python_names(nodes):
        problem = _name_problem(kind, name)
        if problem:
            yield line, problem
    for text, line in _docstrings(nodes):
        match = OPENINGS.match(text)
        if match:
            yield line, f"the docstring opens with {match.group(1)!r}"
    if not NO_TEXT.search(source):  # as in most files: no text has a retired word
        return
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for below, problem in _text_problems(node.value):
                yield node.lineno + below, problem
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for _, problem in _text_problems(token.string):
                yield token.start[0], problem


def _in_cpp(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    problem = _name_problem("module", path.stem)
    if problem:
        yield 1, problem
    for match in _CPP_TEXT.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        for below, problem in _text_problems(match.group(0)):
            yield line + below, problem
    bare = _CPP_TEXT.sub(lambda m: "\n" * m.group(0).count("\n"), source)
    for match in _CPP_NAME.finditer(bare):
        problem = _name_problem("name", match.group(0))
        if problem:
            yield bare.count("\n", 0, match.start()) + 1, problem


def _in_markdown(path: Path) -> Iterator[tuple[int, str]]:
    text = _CODE.sub(lambda m: "\n" * m.group(0).count("\n"), path.read_text(encoding="utf-8"))
    for line, problem in _text_problems(text):
        yield line + 1, problem


_READERS = {".py": _in_python, ".hpp": _in_cpp, ".cpp": _in_cpp, ".md": _in_markdown}


def covered() -> list[Path]:
    """Return all files that the rules are about."""
    return sorted(path for pattern in (*SOURCES, *TEXTS) for path in ROOT.glob(pattern))


def retired_words(paths: Iterable[Path]) -> list[Found]:
    """Return what breaks a rule in the files."""
    return [
        Found(path, line, problem)
        for path in paths
        for line, problem in sorted(set(_READERS[path.suffix](path)))
    ]


class Placeholder(NamedTuple):
    """One binding of a name that is a placeholder."""

    path: Path
    line: int
    name: str


class NameCount(NamedTuple):
    """Bindings of some files: of all names, and those of `PLACEHOLDERS` and of `GENERIC`."""

    names: int
    placeholders: list[Placeholder]
    generic: int

    @property
    def placeholder_share(self) -> float:
        """Placeholders among all bindings; 0 of none."""
        return len(self.placeholders) / max(1, self.names)

    @property
    def generic_share(self) -> float:
        """Placeholders and generic names among all bindings; 0 of none."""
        return (len(self.placeholders) + self.generic) / max(1, self.names)


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of each assigned name and parameter, without leading underscores.

    Left out: `self` and `cls`, and parameters of protocols: of methods such as ``__eq__``.
    """
    protocols = {
        parameter
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and re.fullmatch(r"__\w+__", function.name)
        and function.name not in ("__init__", "__new__", "__call__")
        for parameter in ast.walk(function.args)
        if isinstance(parameter, ast.arg)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name.lstrip("_"), node.lineno
            case ast.arg(arg=name) if name not in ("self", "cls") and node not in protocols:
                yield name.lstrip("_"), node.lineno
            case _:
                pass


def count_names(paths: Iterable[Path]) -> NameCount:
    """Count the names that Python files bind."""
    names, generic = 0, 0
    placeholders: list[Placeholder] = []
    for path in paths:
        for name, line in bound_names(ast.parse(path.read_text(encoding="utf-8"))):
            names += 1
            generic += name in GENERIC
            if name in PLACEHOLDERS:
                placeholders.append(Placeholder(path, line, name))
    return NameCount(names, placeholders, generic)


def packages(source: Path) -> dict[str, list[Path]]:
    """Return the Python files of each package in a folder, and its own modules as ``(top)``."""
    files: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*.py")):
        folders = path.relative_to(source).parts[:-1]
        files.setdefault(folders[0] if folders else "(top)", []).append(path)
    return files


def banned_phrases(paths: Iterable[Path]) -> list[Found]:
    """Return every use of `PHRASES` in the texts of files: docstrings, messages and comments."""
    phrases: list[Found] = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            source = _CODE.sub(lambda code: "\n" * code.group(0).count("\n"), source)
        for phrase in PHRASES.finditer(source):
            line = source.count("\n", 0, phrase.start()) + 1
            phrases.append(Found(path, line, f"the phrase {' '.join(phrase.group(0).split())!r}"))
    return phrases


def test_placeholders_are_counted_among_the_names_that_a_file_binds(tmp_path: Path) -> None:
    module = tmp_path / "one" / "schedule.py"
    module.parent.mkdir()
    module.write_text(
        "class Schedule:\n"
        "    def __eq__(self, other): return True\n"
        "    def __init__(self, other): self.kept = other\n"
        "def read(path, *, each):\n"
        "    found = [entry for entry in path]\n"
        "    _made, steps = found\n"
    )
    (tmp_path / "errors.py").write_text("")
    assert {name: len(files) for name, files in packages(tmp_path).items()} == {
        "(top)": 1,
        "one": 1,
    }
    count = count_names(packages(tmp_path)["one"])
    assert sorted((place.line, place.name) for place in count.placeholders) == [
        (3, "other"),
        (4, "each"),
        (5, "found"),
        (6, "made"),
    ]
    assert (count.names, count.generic) == (7, 1)
    assert count.placeholder_share == 4 / 7
    assert count.generic_share == 5 / 7


def test_phrases_are_found_across_lines_and_not_in_quoted_code(tmp_path: Path) -> None:
    module = tmp_path / "step.py"
    module.write_text('"""Return what a step reads.\n\nAdds to those of\nbefore."""\n')
    page = tmp_path / "page.md"
    page.write_text("`is there`\nThe data is there.\n")
    assert [(phrase.path.name, phrase.line) for phrase in banned_phrases([module, page])] == [
        ("step.py", 1),
        ("step.py", 3),
        ("page.md", 2),
    ]


def test_texts_and_names_use_the_words_of_the_field() -> None:
    found = [*retired_words(covered()), *banned_phrases(covered())]
    assert not found, "\n".join(map(str, found))


def test_every_rule_can_fail(tmp_path: Path) -> None:
    python = tmp_path / "census.py"
    python.write_text(
        '"""What it is."""\n# who did\nclass Shape:\n    worth: int\n\n'
        'def hear(loan: str) -> None:\n    raise ValueError("the guest left")\n'
    )
    cpp = tmp_path / "ring.cpp"
    cpp.write_text('// somebody\nint borrow(int x) { return fail("a stranger"); }\n')
    text = tmp_path / "page.md"
    text.write_text("It is `foreseen`.\nThe crowd.\n")
    assert [(found.line, found.path.name) for found in retired_words([python, cpp, text])] == [
        *((line, "census.py") for line in (1, 1, 2, 3, 4, 6, 6, 7)),
        *((line, "ring.cpp") for line in (1, 2, 2)),
        (2, "page.md"),
    ]


def main(arguments: list[str]) -> None:
    """Print what breaks a rule, or the places of a count, in all files or below some paths."""
    folders = [Path(argument).resolve() for argument in arguments if argument[:2] != "--"]
    files = [
        path
        for path in covered()
        if not folders or any(path.is_relative_to(folder) for folder in folders)
    ]
    if "--placeholders" in arguments:
        python = [path for path in files if path.suffix == ".py"]
        for path, line, name in count_names(python).placeholders:
            print(f"{path.relative_to(ROOT)}:{line}: {name}")
        return
    problems = banned_phrases(files) if "--phrases" in arguments else retired_words(files)
    for problem in problems:
        print(problem)


if __name__ == "__main__":
    main(sys.argv[1:])
