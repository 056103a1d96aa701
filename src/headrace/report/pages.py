"""Pages of files, by the kind of artifact."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headrace.artifact as artifact_io
from headrace.errors import ArtifactError
from headrace.extras import require
from headrace.kinds import kind_of
from headrace.report.page import Page


def page_of(path: Path) -> Page:
    """Return the page of an artifact or of a benchmark's stored result.

    Raises
    ------
    ArtifactError : if the file is neither, or of a kind that has no page.
    InputError : Plotly is not installed.
    """
    require("plotly", "report", "a report")
    result = _benchmark(path)
    if result is not None:
        from headrace.report.benchmark_page import benchmark_page

        return benchmark_page(result, path.name)
    artifact = artifact_io.load(path)
    kind = kind_of(artifact, str(path), "page")
    assert kind.page is not None
    page = kind.page(kind.load(artifact, path.name), path.name)
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
