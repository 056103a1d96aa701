"""Markdown pages of the repository as pages of the site: the same text, with links that lead there.

A link to another page stays a link to a page. One to a benchmark's kept result leads to the page of
its claim's results, and one to a file or folder of sources to a copy of it (`docs.site.sources`).
"""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath

from docs.site.root import ROOT
from docs.site.sources import source_copy

INDEX = "docs/site/index.md"
_PATTERNS = ("*.md", "docs/**/*.md", "benchmarks/**/README.md")

_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[((?:`[^`]*`|[^\]\[`])*)\]\(([^)\s]+)\)")
_RESULT = re.compile(r"benchmarks/([\w-]+)/results/[^/]+\.json")


@cache
def repository_pages() -> list[str]:
    """Return the paths of the pages, from the repository's root."""
    paths = {path for pattern in _PATTERNS for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def staged_path(page: str) -> str:
    """Return the path of a page in the site."""
    return "index.md" if page == INDEX else page


def staged_text(page: str) -> tuple[str, set[str]]:
    """Return the text of a page in the site, and the files and folders of sources that it links to.

    Raises
    ------
    FileNotFoundError : naming the page, for a link to what does not exist.
    """
    sources: set[str] = set()

    def replace(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return link[0]
        path, _, anchor = target.partition("#")
        return _staged_link(page, text, path, anchor, sources)

    return _outside_of_code(
        (ROOT / page).read_text(), lambda text: _LINK.sub(replace, text)
    ), sources


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text with its parts between blocks of code changed."""
    parts: list[str] = []
    end = 0
    for block in _FENCED.finditer(text):
        # GitHub draws these; a site without a network shows the diagram's text
        code = block[0].replace("```mermaid", "```text")
        parts += [change(text[end : block.start()]), code]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def _staged_link(page: str, text: str, path: str, anchor: str, sources: set[str]) -> str:
    target = os.path.normpath(PurePosixPath(page).parent / path)
    end = f"#{anchor}" if anchor else ""
    if (ROOT / target / "README.md").exists():
        target = f"{target}/README.md"
    if not (ROOT / target).exists():
        raise FileNotFoundError(f"{page}: the link to {path} leads nowhere")
    folder = PurePosixPath(staged_path(page)).parent
    if target in repository_pages():
        return f"[{text}]({os.path.relpath(staged_path(target), folder)}{end})"
    if result := _RESULT.fullmatch(target):
        return f"[{text}]({os.path.relpath(f'results/{result[1]}.md', folder)})"
    sources.add(target)
    return f'<a href="{os.path.relpath(source_copy(target), folder)}{end}">{text}</a>'
