"""Pages of kept results of benchmarks: every bar with its figure, the machine and the date."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.site.root import ROOT


def result_pages() -> dict[str, str]:
    """Return the texts of the pages, in Markdown, by their paths in the site."""
    kept: dict[str, list[Path]] = {}
    for path in sorted(ROOT.glob("benchmarks/*/results/kept-*Z.json"), reverse=True):
        kept.setdefault(path.parent.parent.name, []).append(path)
    pages = {
        f"results/{claim}.md": "\n".join(_claim(claim, paths)) for claim, paths in kept.items()
    }
    return {"results.md": "\n".join(_index(sorted(kept))), **pages}


def _index(claims: list[str]) -> Iterator[str]:
    yield "# Results"
    yield ""
    yield "Kept results of the benchmarks, as `make bench CLAIM=name KEEP=1` stored them: newest"
    yield "first, with the bars that were missed. A figure holds for the machine that it names."
    yield ""
    yield "```{toctree}"
    yield ":maxdepth: 1"
    yield ""
    yield from (f"/results/{claim}" for claim in claims)
    yield "```"
    yield ""


def _claim(claim: str, paths: list[Path]) -> Iterator[str]:
    yield f"# Results: {claim}"
    yield ""
    yield f"What is measured: [{claim}](../benchmarks/{claim}/README.md)."
    for path in paths:
        yield ""
        yield from _result(json.loads(path.read_text()))


def _result(result: dict[str, Any]) -> Iterator[str]:
    machine, versions = result["machine"], result["versions"]
    kind = "quick run" if result["quick"] else "full run"
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield f"## {result['started'][:10]}, {kind}"
    yield ""
    yield (
        f"{machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']} {machine['kernel']}; "
        f"{packages}; commit `{result['commit']}`; {result['took_s']:,.0f} s."
    )
    yield ""
    if result["bars"]:
        yield "| bar | figure | required | |"
        yield "|---|---:|---|---|"
        for bar in result["bars"]:
            cells = (f"`{bar['name']}`", _figure(bar["figure"]), bar["required"], _verdict(bar))
            yield f"| {' | '.join(cells)} |"
        yield ""
    for note in result["notes"]:
        yield f"- {_plain(note)}"
    yield ""


def _figure(figure: float | None) -> str:
    return "unmeasured" if figure is None else f"{figure:,.4g}"


def _verdict(bar: dict[str, Any]) -> str:
    return "ok" if bar["ok"] else "skipped" if bar.get("skipped") else "SHORT"


def _plain(note: str) -> str:
    """Return a note with what Markdown would read as marks shown as it is."""
    for mark in "\\`*_[]<>|$":
        note = note.replace(mark, f"\\{mark}")
    return " ".join(note.split())
