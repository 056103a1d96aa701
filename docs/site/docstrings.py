"""Sections of docstrings in NumPy's style whose entries are ``name : text``.

Types are in the annotations, so that a text is in the type's place.
"""

import inspect
import re
from collections.abc import Iterator

_SECTION = re.compile(r"^([A-Z]\w+(?: \w+)?)\n-{3,}$", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*?)(?: : ?(.*))?$")
_FIELDS = {"Parameters": "param", "Attributes": "ivar", "Raises": "raises"}
"""Names of Sphinx's fields, by sections of entries."""


def sections(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of a docstring's sections; the first one has no title."""
    parts = _SECTION.split(inspect.cleandoc(docstring))
    yield "", parts[0].strip()
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        yield name, content.strip("\n")


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield (names, description) of a section's entries."""
    for entry in re.split(r"\n(?=\S)", text.strip("\n")):
        first, _, others = entry.partition("\n")
        if matched := _ENTRY.match(first):
            yield matched[1], inspect.cleandoc(f"{matched[2] or ''}\n{others}")


def definitions(docstring: str, title: str) -> dict[str, str]:
    """Return the descriptions of a section's entries by name; names that share one each have it."""
    return {
        name.strip("`* "): description
        for section, text in sections(docstring)
        if section == title
        for names, description in entries(text)
        for name in names.split(", ")
    }


def with_fields(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with Sphinx's fields in place of its sections of entries."""
    changed: list[str] = []
    for title, text in sections("\n".join(lines)):
        if title not in _FIELDS:
            changed += [*(("", f".. rubric:: {title}", "") if title else ()), *text.splitlines()]
            continue
        changed.append("")
        for names, description in entries(text):
            for name in names.split(", "):
                first, *others = description.splitlines() or [""]
                shown = name.strip("`").replace("*", r"\*")
                changed.append(f":{_FIELDS[title]} {shown}: {first}")
                changed += [f"    {line}".rstrip() for line in others]
    return [*changed, ""]
