"""The words of the field: names, docstrings, comments and messages use standard terms.

Four rules, over `src`, `native`, the README and `docs/` (quotations in backticks apart there):

- a docstring does not open with Who, What, Whether or How;
- no text uses a word of `NO_TEXT`, which stands for a person or is the project's own invention;
- no name uses a word of `NO_NAME`: ordinary words, which text may use;
- no module and no class uses a word of `NO_MODULE`.

Names in formats keep their words: `FORMATS` lists them.
``python -m tests.vocabulary_test [PATH...]`` prints what breaks a rule.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ("README.md", "docs/*.md")
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


def _python_names(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
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


def _docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
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
    tree = ast.parse(source)
    problem = _name_problem("module", path.stem)
    if problem:
        yield 1, problem
    for kind, name, line in _python_names(tree):
        problem = _name_problem(kind, name)
        if problem:
            yield line, problem
    for text, line in _docstrings(tree):
        match = OPENINGS.match(text)
        if match:
            yield line, f"the docstring opens with {match.group(1)!r}"
    for node in ast.walk(tree):
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


def test_texts_and_names_use_the_words_of_the_field() -> None:
    found = retired_words(covered())
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


if __name__ == "__main__":
    _chosen = [Path(argument).resolve() for argument in sys.argv[1:]]
    _files = [
        path for path in covered() if not _chosen or any(path.is_relative_to(c) for c in _chosen)
    ]
    for _one in retired_words(_files):
        print(_one)
