"""Pages of files, by the kind of artifact."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ArtifactError
from headrace.kinds import artifact_kinds, function_of, load_artifact
from headrace.report.page import Page


def page_of(path: Path) -> Page:
    """Return the page of an artifact or of a benchmark's stored result.

    Raises
    ------
    ArtifactError : if the file is neither, or of a kind that has no page.
    InputError : it has charts, and Plotly is not installed.
    """
    result = _benchmark(path)
    if result is not None:
        from headrace.report.benchmark_page import benchmark_page

        return benchmark_page(result, path.name)
    artifact = load_artifact(path)
    needs = "needs one of {}, or a benchmark's result: other kinds have no page"
    page_of_kind = function_of(artifact, str(path), lambda kind: kind.page, needs)
    value = artifact_kinds()[artifact.kind].load(artifact, path.name)
    page = page_of_kind(value, path.name)
    page.heading("Provenance")
    page.facts(
        [
            ("kind", f"{artifact.kind} (schema {artifact.schema})"),
            ("digest", artifact.digest),
            *((str(name), str(value)[:2000]) for name, value in artifact.provenance.items()),
        ]
    )
    return page


def _benchmark(path: Path) -> Mapping[str, Any] | None:
    """Return the result that a benchmark stored; None if the file is no plain JSON object."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
            if not start.lstrip().startswith(b"{") or b'"headrace-artifact"' in start:
                return None
            found: Any = json.loads(start + file.read())
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "claim" in found else None  # pyright: ignore
