"""``headrace schema``: schemas of the JSON that verbs print for scripts."""

import difflib
import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headrace.cli.console import tables_hidden
from headrace.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasResult:
    """JSON schemas (draft 2020-12) by verb."""

    schemas: dict[str, dict[str, Any]]


def schema_command(
    verb: Annotated[
        list[str] | None,
        typer.Argument(help="A verb, such as index plan; all if absent.", metavar="VERB"),
    ] = None,
) -> SchemasResult:
    """Print the JSON schemas of what verbs print with --json.

    Every document has the verb, the version of its schema, and the result. A version grows where a
    field goes or changes its meaning; new fields may come without.

    Example: headrace schema index plan
    """
    from headrace.cli.app import near_verbs

    asked = " ".join(verb or ())
    schemas = schemas_of()
    if asked and asked not in schemas:
        near = difflib.get_close_matches(asked, schemas, 3) or near_verbs(asked.rpartition(" ")[2])
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"VERB is {asked!r}, needs one of {', '.join(schemas)}{hint}")
    schemas = {path: schema for path, schema in schemas.items() if asked in ("", path)}
    if not tables_hidden.get():
        shown = schemas[asked] if asked else schemas
        sys.stdout.write(f"{json.dumps(shown, indent=1)}\n")
    return SchemasResult(schemas=schemas)


def schemas_of() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of all verbs."""
    from headrace.cli.answers import schema_of
    from headrace.cli.app import verbs

    return {path: dict(schema_of(path, command.callback)) for path, command in verbs()}
