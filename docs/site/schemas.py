"""Pages of what verbs print with ``--json``: their schemas, a page for each capability."""

import json
from collections.abc import Mapping
from typing import Any

from docs.site.restructured import directive, heading, page_title
from headrace.cli.schema import schemas_of
from headrace.kinds import capabilities

SCHEMAS = "reference/json"
"""Path of the page that lists the others, without its ending, and of their folder."""
_SHARED = "shared"


def schema_pages() -> dict[str, str]:
    """Return the texts of the pages, in reStructuredText, by their paths in the site."""
    groups: dict[str, dict[str, Mapping[str, Any]]] = {}
    for verb, schema in schemas_of().items():
        capability = verb.split()[0]
        group = capability if capability in capabilities() else _SHARED
        groups.setdefault(group, {})[verb] = schema
    names = sorted(groups, key=lambda group: (group == _SHARED, group))
    lines = [
        *page_title("JSON of verbs"),
        "With ``--json`` a verb prints one object: ``verb``, the ``version`` of its schema, and",
        "``result``. A version grows where a field goes or changes its meaning; new fields may",
        "come without. ``headrace schema VERB`` prints the same schemas (draft 2020-12).",
        "",
        *directive("toctree", "", [":maxdepth: 2"], [f"/{SCHEMAS}/{name}" for name in names]),
    ]
    pages = {f"{SCHEMAS}/{name}.rst": _page(name, groups[name]) for name in names}
    return {f"{SCHEMAS}.rst": "\n".join(lines), **pages}


def _page(group: str, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    title = "verbs that all capabilities share" if group == _SHARED else group
    lines = page_title(f"JSON of {title}")
    for verb, schema in schemas.items():
        lines += heading(f"headrace {verb}")
        properties = schema["properties"]
        summary = properties["result"].get("description", "").partition("\n\n")[0]
        lines += [*f"Version {properties['version']['const']}. {summary}".splitlines(), ""]
        lines += directive("code-block", "json", (), json.dumps(schema, indent=1).splitlines())
    return "\n".join(lines)
