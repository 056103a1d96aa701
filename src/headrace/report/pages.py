"""Pages of files, by the kind of artifact."""

from pathlib import Path

from headrace.kinds import artifact_kinds, function_of, load_artifact
from headrace.report.page import Page
from headrace.report.provenance import labelled_rows
from headrace.report.results import stored_result


def page_of(path: Path) -> Page:
    """Return the page of an artifact or of a benchmark's stored result.

    Raises
    ------
    ArtifactError : if the file is neither, or of a kind that has no page.
    InputError : it has charts, and Plotly is not installed.
    """
    result = stored_result(path)
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
            *labelled_rows(artifact.provenance, most=2000),
        ]
    )
    return page
