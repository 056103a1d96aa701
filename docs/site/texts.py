"""The texts of all pages of the site."""

from docs.site import pages
from docs.site.names import Sources
from docs.site.reference import reference_pages
from docs.site.registries import registry_pages
from docs.site.results import result_pages
from docs.site.schemas import schema_pages


def site_texts() -> tuple[dict[str, str], set[str]]:
    """Return the texts of all pages by their paths, and the sources that they link to."""
    sources = Sources.read()
    texts = {
        **reference_pages(sources),
        **registry_pages(sources),
        **schema_pages(),
        **result_pages(),
    }
    linked: set[str] = set()
    for page in pages.repository_pages():
        text, links = pages.staged_text(page)
        texts[pages.staged_path(page)] = text
        linked |= links
    return texts, linked
