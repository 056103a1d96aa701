"""Copies of the sources that pages link to, as plain text that browsers show."""

import html
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from docs.site.root import ROOT

_LISTING = """<!doctype html>
<meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 1rem/1.5 sans-serif; margin: 2rem auto; max-width: 50rem }}</style>
<h1>{title}</h1>
<ul>
{entries}
</ul>
"""


def source_copy(path: str) -> str:
    """Return where the copy of a file, or the list of a folder, is in the site."""
    if (ROOT / path).is_dir():
        return f"source/{path}/index.html"
    return f"source/{path}.txt"


def write_sources(paths: Iterable[str], site: Path) -> None:
    """Write copies of files, and lists of folders with copies of what is in them."""
    files = _repository_files()
    copied: set[str] = set()
    for path in paths:
        if not (ROOT / path).is_dir():
            copied.add(path)
            continue
        inside = [PurePosixPath(file) for file in files if file.startswith(f"{path}/")]
        copied.update(map(str, inside))
        below = {parent for file in inside for parent in file.parents}
        for folder in sorted(below):
            if folder.is_relative_to(path):
                _write_list(folder, inside, site)
    for path in sorted(copied):
        copy = site / source_copy(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())


def _repository_files() -> list[str]:
    """Return the files of the repository, new ones too, but none that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


def _write_list(folder: PurePosixPath, files: Iterable[PurePosixPath], site: Path) -> None:
    names = {file.relative_to(folder).parts for file in files if file.is_relative_to(folder)}
    entries = {parts[0]: len(parts) == 1 for parts in sorted(names)}
    lines = [
        f'<li><a href="{name}.txt">{name}</a>{_summary(ROOT / folder / name)}</li>'
        if is_file
        else f'<li><a href="{name}/index.html">{name}/</a></li>'
        for name, is_file in entries.items()
    ]
    listing = site / "source" / folder / "index.html"
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text(_LISTING.format(title=folder, entries="\n".join(lines)))


def _summary(path: Path) -> str:
    """Return the first line of a module's docstring, for a list."""
    if path.suffix != ".py":
        return ""
    docstring = re.match(r'"""(.*?)(?:"""|\n)', path.read_text(encoding="utf-8"))
    return f": {html.escape(docstring[1])}" if docstring else ""
