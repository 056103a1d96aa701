"""Pages of what the code registers: settings, errors, kinds of artifacts."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields

from docs.site.docstrings import definitions
from docs.site.names import Sources
from docs.site.restructured import definition, directive, heading, page_title
from headrace.kinds import ArtifactKind, artifact_kinds, foreign_formats
from headrace.settings import Settings, sections

SETTINGS = "reference/settings.rst"
_EXIT_CODES = {
    0: "The command did what was asked.",
    1: "Any error but those of 2: a plan is wrong, a peer died, a deadline passed.",
    2: "`headrace.InputError`: an input is wrong, or a package that the command needs is missing.",
    130: "Interrupted by Ctrl-C.",
}


def registry_pages(sources: Sources) -> dict[str, str]:
    """Return the texts of the pages, in reStructuredText, by their paths in the site."""
    pages = {
        SETTINGS: _settings(),
        "reference/errors.rst": _errors(sources),
        "reference/formats.rst": _formats(),
    }
    return {path: "\n".join(lines) for path, lines in pages.items()}


def undocumented_settings(text: str) -> list[str]:
    """Return the environment variables without an entry, or without a text, on the page `text`."""
    return [
        variable
        for section in sections()
        for field, (variable, _) in section.variables().items()
        if not _descriptions(section).get(field) or f"\n``{variable}``" not in text
    ]


def _descriptions(section: type[Settings]) -> Mapping[str, str]:
    """Return the descriptions of the fields of a section, and of the shared ones."""
    shared = definitions(Settings.__doc__ or "", "Attributes")
    return {**shared, **definitions(section.__doc__ or "", "Attributes")}


def _settings() -> Iterator[str]:
    yield from page_title("Settings")
    yield "Environment variables, read once by the field that has each. One that is set but empty"
    yield "counts as not set; an unknown one that begins with ``HEADRACE_`` gives a warning, and a"
    yield "wrong value an error that names the variable and what is allowed."
    yield ""
    for section in sections():
        yield from heading(section.__name__)
        yield f"`{section.__module__}.{section.__name__}`"
        yield ""
        descriptions = _descriptions(section)
        shared = set() if section is Settings else set(Settings.variables())
        defaults = {field.name: field.default for field in fields(section)}
        for field, (variable, _) in section.variables().items():
            if field not in shared:
                text = descriptions.get(field, "").removeprefix(f"{variable}, ")
                yield from definition(
                    f"``{variable}``", f"{text}\n\n{_default(field, defaults[field])}"
                )


def _default(field: str, default: object) -> str:
    if default is None or default is MISSING:
        return f"Field ``{field}``."
    words = {True: "on", False: "off"}.get(default, default) if type(default) is bool else default
    return f"Field ``{field}``; default: {words}."


def _errors(sources: Sources) -> Iterator[str]:
    yield from page_title("Errors")
    yield "Every exception that headrace raises deliberately. A message names the file, field, rank"
    yield "or operation, the value that was read, and the values that are accepted."
    yield ""
    yield from heading("Exit codes of commands")
    for code, meaning in _EXIT_CODES.items():
        yield from definition(f"``{code}``", meaning)
    for module, parsed in sources.modules.items():
        if module.split(".")[-1] != "errors":
            continue
        docstring = ast.get_docstring(parsed.tree) or ""
        yield from heading(module.removesuffix(".errors"))
        yield from docstring.splitlines()
        yield ""
        classes = [node.name for node in parsed.tree.body if isinstance(node, ast.ClassDef)]
        names = [sources.canonical.get((module, name)) for name in classes]
        yield ", ".join(f"`{name}`" for name in names if name)
        yield ""


def _formats() -> Iterator[str]:
    yield from page_title("Kinds of artifacts")
    yield "What stages hand each other, and every verb reads: a container with a head in JSON and"
    yield "columns in Arrow (:doc:`layout </docs/plan-format>`). The schema is the version that is"
    yield "written; a file of an earlier one loads, or names the command that makes it again."
    yield ""
    rows = [*_row("kind", "schema", "content", "page", "verbs")]
    for kind in artifact_kinds().values():
        page = f":doc:`/docs/{kind.documentation.removesuffix('.md')}`"
        rows += _row(f"``{kind.name}``", str(kind.schema), kind.summary, page, _verbs(kind))
    yield from directive("list-table", "", [":header-rows: 1"], rows)
    yield "What verbs print for scripts, and its schemas: :doc:`/reference/json`."
    yield ""
    yield from heading("Formats of other tools")
    for foreign in foreign_formats():
        yield f"- {foreign.name}: ``headrace verify`` proves or refutes it."
    yield ""


def _verbs(kind: ArtifactKind) -> str:
    verbs = ["show"]
    verbs += ["verify"] if kind.verify is not None else []
    verbs += ["report"] if kind.page is not None else []
    plain = "; plain JSON is read, too" if kind.plain is not None else ""
    return ", ".join(verbs) + plain


def _row(*cells: str) -> Iterator[str]:
    for number, cell in enumerate(cells):
        yield f"{'* -' if number == 0 else '  -'} {cell}"
