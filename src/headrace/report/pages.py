"""Pages of files, by the kind of artifact."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import headrace.artifact as artifact_io
from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.extras import require
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
    if artifact.kind not in _PAGES:
        raise ArtifactError(
            f"{path}: field 'kind' is '{artifact.kind}', pages exist for {', '.join(_PAGES)} and "
            "benchmark results"
        )
    page = _PAGES[artifact.kind](artifact, path.name)
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


def _plan(artifact: Artifact, source: str) -> Page:
    from headrace.collectives.plan.plan import Plan
    from headrace.collectives.report.plan_page import plan_page

    return plan_page(Plan.from_artifact(artifact, source), source)


def _book(artifact: Artifact, source: str) -> Page:
    from headrace.collectives.plan.book import PlanBook
    from headrace.collectives.report.book_page import book_page

    return book_page(PlanBook.from_artifact(artifact, source), source)


def _topology(artifact: Artifact, source: str) -> Page:
    from headrace.report.network_page import topology_page
    from headrace.topology import Topology

    return topology_page(Topology.from_head(artifact.head, source), source)


def _profile(artifact: Artifact, source: str) -> Page:
    from headrace.report.network_page import profile_page
    from headrace.topology.profile import Profile

    return profile_page(Profile.from_artifact(artifact, source), source)


_PAGES: dict[str, Callable[[Artifact, str], Page]] = {
    "plan": _plan,
    "plan-book": _book,
    "topology": _topology,
    "profile": _profile,
}
