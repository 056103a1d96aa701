"""Docstrings as reStructuredText: sections of NumPy's style become lists of definitions.

An entry ``name : text`` has text in place of a type, as types are in the annotations.
"""

import inspect
import re
from collections.abc import Iterator

_SECTION = re.compile(r"^([A-Z]\w+(?: \w+)?)\n-{3,}$", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*?)(?: : ?(.*))?$")


def sections(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of a docstring's sections; the first one has no title."""
    text = inspect.cleandoc(docstring)
    parts = _SECTION.split(text)
    yield "", parts[0].strip()
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        yield name, content.strip("\n")


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield (names, description) of a section's entries."""
    names = ""
    lines: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            if names:
                yield names, inspect.cleandoc("\n".join(lines))
            entry = _ENTRY.match(line)
            assert entry is not None
            names, lines = entry[1], [entry[2] or ""]
        else:
            lines.append(line)
    if names:
        yield names, inspect.cleandoc("\n".join(lines))


def definitions(docstring: str, title: str) -> dict[str, str]:
    """Return the descriptions of a section's entries by name; names that share one each have it."""
    for section, text in sections(docstring):
        if section == title:
            return {
                name.strip("`* "): description
                for names, description in entries(text)
                for name in names.split(", ")
            }
    return {}


def rst(docstring: str) -> list[str]:
    """Return the lines of a docstring in reStructuredText."""
    lines: list[str] = []
    for title, text in sections(docstring):
        if not title:
            lines += text.splitlines()
        elif title in ("Parameters", "Attributes", "Raises"):
            lines += ["", f".. rubric:: {title}", ""]
            for names, description in entries(text):
                marked = ", ".join(f"``{name.strip('`')}``" for name in names.split(", "))
                lines += definition(marked, description)
        else:
            lines += ["", f".. rubric:: {title}", "", *text.splitlines()]
    return [*lines, ""]


def definition(term: str, description: str) -> list[str]:
    """Return the lines of an entry of a list of definitions."""
    body = description.splitlines() or [".."]
    return [term, *(f"    {line}".rstrip() for line in body), ""]


def page_title(text: str) -> list[str]:
    """Return the lines of a page's title."""
    return [text, "=" * len(text), ""]


def heading(text: str) -> list[str]:
    """Return the lines of a section's heading."""
    return [text, "-" * len(text), ""]
