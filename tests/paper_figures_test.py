"""Figures and tables of the papers are named by what they show, and not by their numbers alone.

A reader of an output or a page has no paper at hand: "as Figure 5.6" says nothing, "size and misses
of caches (Figure 5.6)" does. The number stands in parentheses behind the words, or before a colon.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PAGES = ("*.md", "docs/**/*.md", "benchmarks/**/README.md")
_SOURCES = ("src/headrace/**/*.py", "benchmarks/**/*.py", "examples/*.py")

_NUMBER = r"(?:[A-Z]\.)?\d[\d.]*[a-z]?\b"
_NUMBERS = rf"{_NUMBER}(?:(?:,| and| to|, and) {_NUMBER})*"
_WORDS = r"\b(?:Figures?|Fig\.|Tables?)"
_MENTION = re.compile(rf"{_WORDS} {_NUMBERS}")
_ANYWHERE = re.compile(rf"{_WORDS}\s+{_NUMBER}")
_NAMED_BEHIND = re.compile(r": \S*\w{3,}")
_WORD = re.compile(r"\w{3,}")
_LEAST_WORDS = 2
"""Before a parenthesis with a number."""


def bare_mentions(text: str) -> Iterator[str]:
    """Yield the mentions of figures and tables in a text that no words name."""
    if not _ANYWHERE.search(text):
        return
    for sentence in _sentences(text):
        for mention in _MENTION.finditer(sentence):
            before, behind = sentence[: mention.start()], sentence[mention.end() :]
            opened = _opening(before)
            words = () if opened is None else _WORD.findall(before[:opened])
            begins = not re.search(r"\w", before)
            named = len(words) >= _LEAST_WORDS or (begins and _NAMED_BEHIND.match(behind))
            if not named:
                yield f"{mention[0]} in {sentence.strip()!r}"


def _sentences(text: str) -> list[str]:
    """Return sentences, and cells of tables, each in one line."""
    parts = re.split(r"\n\s*\n|\n\s*(?=[-|])|\|", text)
    lines = (re.sub(r"\s+", " ", part) for part in parts)
    return [
        sentence for line in lines for sentence in re.split(r"(?<=[a-z\d)][.:]) (?=[A-Z])", line)
    ]


def _opening(text: str) -> int | None:
    """Return where the innermost parenthesis that is open at the end of a text begins."""
    opened: list[int] = []
    for place, character in enumerate(text):
        if character == "(":
            opened.append(place)
        elif character == ")" and opened:
            opened.pop()
    return opened[-1] if opened else None


def _texts(path: Path) -> Iterator[str]:
    """Yield a page's text, or the strings of a module; expressions in strings are dots."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield text
        return
    if not re.search(_WORDS, text):  # most: parsing takes longer
        return
    tree = ast.parse(text)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [
                part.value if isinstance(part, ast.Constant) else "..." for part in node.values
            ]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from () if id(node) in inside else (node.value,)


@pytest.mark.parametrize(
    "text",
    [
        "Time against memory (as Figure 4.4)",
        "Return the numbers of heads of the clusters, the largest first (Figure 6.10).",
        "Figure 6.3: correlation of heads",
        "| Figures 6.3, 6.4: correlation, average and of a sample | reproduced |",
        "rates by key set (Figures 6.6 and 6.7 as tables)",
    ],
)
def test_words_before_or_behind_name_a_figure(text: str) -> None:
    assert list(bare_mentions(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "as in Figure 5.9, many connections save messages",
        "Table 4.1's times of ResNet-50",
        "(Figure 5.6)",
        "The curve.\n\nFigure 4.4",
        "| Figure 6 |",
        "It is so. (Table 5.1)",
    ],
)
def test_a_number_alone_is_refused(text: str) -> None:
    assert len(list(bare_mentions(text))) == 1


def test_every_figure_of_the_papers_is_named_by_what_it_shows() -> None:
    paths = sorted(path for pattern in (*_PAGES, *_SOURCES) for path in ROOT.glob(pattern))
    assert paths
    bare = [
        f"{path.relative_to(ROOT)}: {mention}"
        for path in paths
        for text in _texts(path)
        for mention in bare_mentions(text)
    ]
    assert bare == [], "\n".join(bare)
