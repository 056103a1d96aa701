"""Pairs of places in the source that share eight or more lines of one shape.

The shape of a line is its tokens, in which every name is ``n``, every number ``0`` and every string
``''``: copies that differ in names and constants have one shape. Blank lines, comments, docstrings
and imports are left out. Runs in which few shapes repeat (fields of a class, arguments of a call)
are alike without being copies, so a run counts if at least five of its shapes differ.
"""

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

LINES = 8
"""Least lines of a pair of places."""

SHAPES = 5
"""Least shapes that differ in the first `LINES` lines of a pair of places."""

_LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateBlock:
    """Two places with `lines` lines of code of one shape: `first` and `second`, ``module:line``."""

    first: str
    second: str
    lines: int


def line_shapes(source: str) -> list[tuple[int, str]]:
    """Return (line number, shape) of the lines of code, in order."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    shapes: defaultdict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type not in _LAYOUT and line not in skipped:
            shapes[line].append(_shape(token))
    return [(line, " ".join(tokens)) for line, tokens in sorted(shapes.items())]


def _shape(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
        return "n"
    if token.type == tokenize.NUMBER:
        return "0"
    return "''" if token.type == tokenize.STRING else token.string


def duplicate_blocks(modules: Mapping[str, Path]) -> list[DuplicateBlock]:
    """Return every pair of places with at least `LINES` lines of one shape, the longest first."""
    lines = {
        module: line_shapes(path.read_text(encoding="utf-8")) for module, path in modules.items()
    }
    windows: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for module, shapes in lines.items():
        texts = [shape for _, shape in shapes]
        for start in range(len(texts) - LINES + 1):
            window = tuple(texts[start : start + LINES])
            if len(set(window)) >= SHAPES:
                windows[window].append((module, start))
    pairs = {
        pair
        for places in windows.values()
        for pair in combinations(places, 2)
        if not _overlap(*pair)
    }
    blocks: list[DuplicateBlock] = []
    for first, second in sorted(pairs):
        if (_moved(first, -1), _moved(second, -1)) in pairs:
            continue  # continues a pair of places that began a line above
        extent = 1
        while (_moved(first, extent), _moved(second, extent)) in pairs:
            extent += 1
        (first_module, first_start), (second_module, second_start) = first, second
        blocks.append(
            DuplicateBlock(
                first=f"{first_module}:{lines[first_module][first_start][0]}",
                second=f"{second_module}:{lines[second_module][second_start][0]}",
                lines=extent + LINES - 1,
            )
        )
    return sorted(blocks, key=lambda block: (-block.lines, block.first, block.second))


def _overlap(first: tuple[str, int], second: tuple[str, int]) -> bool:
    return first[0] == second[0] and abs(first[1] - second[1]) < LINES


def _moved(place: tuple[str, int], lines: int) -> tuple[str, int]:
    return place[0], place[1] + lines
