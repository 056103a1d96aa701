"""The documentation: names and settings without an entry, warnings of the site, broken links."""

import tempfile
from contextlib import chdir
from pathlib import Path

from benchmarks.harness import Report
from docs.site.build import build
from docs.site.names import Sources
from docs.site.reference import undocumented
from docs.site.registries import SETTINGS, registry_pages, undocumented_settings
from tests.documented import PAGES, SLOW
from tests.documented import problems as problems_of


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return dict.fromkeys(
        (
            "names-undocumented",
            "settings-undocumented",
            "docs-warnings",
            "internal-links-broken",
            "documented-commands-that-warn",
        ),
        "<=0",
    )


def _run(page: str) -> list[str]:
    """Return the commands of a page that fail or warn, run in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return list(problems_of(page))


def measure(report: Report, *, quick: bool) -> None:
    """Build the site, and count what it lacks; run the commands of the pages."""
    left_out = SLOW if quick else set[str]()
    problems = [problem for page in PAGES if page not in left_out for problem in _run(page)]
    if left_out:
        report.note(f"without the commands of {', '.join(sorted(left_out))}, which take minutes")
    for problem in problems:
        report.row("commands", problem=problem)
    report.bar("documented-commands-that-warn", len(problems))
    sources = Sources.read()
    names = undocumented(sources)
    settings = undocumented_settings(registry_pages(sources)[SETTINGS])
    with tempfile.TemporaryDirectory() as folder:
        site = build(Path(folder))
        unlisted = sorted({public.full_name for public in sources.public} - site.names)
        for problem in (*names, *unlisted, *settings, *site.warnings, *site.broken_links):
            report.row("documentation", problem=problem)
        report.bar("names-undocumented", len({*names, *unlisted}))
        report.bar("settings-undocumented", len(settings))
        report.bar("docs-warnings", len(site.warnings))
        report.bar("internal-links-broken", len(site.broken_links))
    report.note(f"{site.pages} pages, {len(sources.public)} public names")
