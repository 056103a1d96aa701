"""The site: stage the pages, run Sphinx, and check every link of what it wrote."""

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.text import Text
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from docs.site.sources import write_sources
from docs.site.texts import site_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A built site.

    Attributes
    ----------
    html : its folder.
    pages : number of pages.
    names : public names with an entry.
    warnings : of Sphinx, a line each.
    broken_links : links within the site that lead nowhere, as ``page: link``.
    """

    html: Path
    pages: int
    names: frozenset[str]
    warnings: tuple[str, ...]
    broken_links: tuple[str, ...]


def build(output: Path) -> Site:
    """Build the site into folders of `output`; what has not changed since the last time stays.

    Raises
    ------
    FileNotFoundError : naming a page and its link to a file that does not exist.
    """
    texts, linked = site_texts()
    _stage(texts, output / "source")
    warnings = io.StringIO()
    with docutils_namespace():
        sphinx = Sphinx(
            srcdir=output / "source",
            confdir=Path(__file__).parent,
            outdir=output / "html",
            doctreedir=output / "doctrees",
            buildername="html",
            status=None,
            warning=warnings,
        )
        sphinx.build()
        names = frozenset(sphinx.env.domains["py"].data["objects"])
    write_sources(linked, output / "html")
    return Site(
        html=output / "html",
        pages=len(texts),
        names=names,
        warnings=tuple(filter(None, Text.from_ansi(warnings.getvalue()).plain.splitlines())),
        broken_links=tuple(broken_links(output / "html")),
    )


def broken_links(html: Path) -> Iterator[str]:
    """Yield ``page: link`` of links within the folder that lead to no file or no anchor."""
    documents = {path: _Document(path) for path in sorted(html.rglob("*.html"))}
    for path, document in documents.items():
        for link in document.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = Path(os.path.normpath(path.parent / unquote(parts.path)))
            anchored = documents.get(target)
            missing = not target.is_file() or (
                parts.fragment and anchored and unquote(parts.fragment) not in anchored.anchors
            )
            if missing:
                yield f"{path.relative_to(html)}: {link}"


class _Document(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.links.append(value)


def _stage(texts: Mapping[str, str], folder: Path) -> None:
    """Write the pages that have changed, so that Sphinx reads only these; delete former ones."""
    for path, text in texts.items():
        staged = folder / path
        if not staged.exists() or staged.read_text() != text:
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_text(text)
    for staged in folder.rglob("*.*"):
        if staged.is_file() and staged.relative_to(folder).as_posix() not in texts:
            staged.unlink()
