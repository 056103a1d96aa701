"""Parts of pages in reStructuredText, as lines."""

from collections.abc import Iterator, Sequence


def page_title(text: str) -> list[str]:
    """Return the lines of a page's title."""
    return [text, "=" * len(text), ""]


def heading(text: str) -> list[str]:
    """Return the lines of a section's heading."""
    return [text, "-" * len(text), ""]


def definition(term: str, description: str) -> list[str]:
    """Return the lines of an entry of a list of definitions."""
    return [term, *_indented(description.splitlines() or [".."]), ""]


def directive(
    name: str, argument: str, options: Sequence[str] = (), content: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a directive; `options` are such as ``:maxdepth: 1``."""
    return [f".. {name}:: {argument}", *_indented(options), "", *_indented(content), ""]


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"    {line}".rstrip() for line in lines)
