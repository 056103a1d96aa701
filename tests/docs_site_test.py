"""The site: pages of all public names and settings, no warning, and no link that leads nowhere."""

from pathlib import Path

import pytest

from docs.site import pages
from docs.site.docstrings import definitions, with_fields
from docs.site.names import Sources
from docs.site.reference import undocumented
from docs.site.registries import SETTINGS, registry_pages, undocumented_settings
from docs.site.schemas import SCHEMAS, schema_pages
from headrace.cli.schema import schemas_of

DOCSTRING = """Return a plan.

Parameters
----------
ranks, hosts : counts of a job,
    of which the first is larger.
seed : for ties.

Raises
------
InputError : ``ranks`` is 0.
"""


def test_entries_of_a_docstring_become_fields() -> None:
    assert with_fields(DOCSTRING.splitlines()) == [
        "Return a plan.",
        "",
        ":param ranks: counts of a job,",
        "    of which the first is larger.",
        ":param hosts: counts of a job,",
        "    of which the first is larger.",
        ":param seed: for ties.",
        "",
        ":raises InputError: ``ranks`` is 0.",
        "",
    ]
    assert definitions(DOCSTRING, "Parameters")["hosts"].endswith("is larger.")
    assert definitions(DOCSTRING, "Raises") == {"InputError": "``ranks`` is 0."}


def test_links_of_pages_lead_to_pages_results_and_copies_of_sources() -> None:
    readme, _ = pages.staged_text("README.md")
    assert "[adaptation](docs/adaptation.md)" in readme
    assert "[2.9 times](results/main-job.md)" in readme
    architecture, sources = pages.staged_text("docs/architecture.md")
    assert '<a href="../source/src/headrace/artifact.py.txt">artifact.py</a>' in architecture
    assert '<a href="../source/native/index.html">native</a>' in architecture
    assert {"src/headrace/artifact.py", "native"} <= sources
    assert "[the benchmark's page](benchmarks/synthesis/README.md)" in readme


def test_every_page_is_in_the_contents() -> None:
    contents = (pages.ROOT / pages.INDEX).read_text().splitlines()
    staged = {pages.staged_path(page) for page in pages.repository_pages()} - {"index.md"}
    assert {f"/{path.removesuffix('.md')}" for path in staged} <= {*contents}
    assert f"/{SCHEMAS}" in contents


def test_every_schema_is_on_a_page_of_the_site() -> None:
    texts = schema_pages().values()
    for verb in schemas_of():
        assert sum(f'"title": "headrace {verb} --json"' in text for text in texts) == 1, verb


@pytest.mark.slow
def test_public_names_and_settings_are_documented() -> None:
    sources = Sources.read()
    assert undocumented(sources) == []
    assert undocumented_settings(registry_pages(sources)[SETTINGS]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_the_site_is_built_without_a_warning_or_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    from docs.site.build import broken_links, build

    site = build(tmp_path)
    assert site.warnings == ()
    assert {public.full_name for public in Sources.read().public} <= site.names
    assert site.broken_links == ()
    page = site.html / "docs" / "memory.html"
    text = page.read_text()
    page.write_text(text + '<a href="no-such-page.html">')
    assert list(broken_links(site.html)) == ["docs/memory.html: no-such-page.html"]
