"""Artifact kinds of the learned index."""

from headrace.index.profile import KIND, PROFILE_SCHEMA, IndexProfile
from headrace.kinds import ArtifactKind, deferred

KINDS = (
    ArtifactKind(
        name=KIND,
        schema=PROFILE_SCHEMA,
        summary="keys and operations of an index's workload: its encoding, and a sample of it",
        documentation="index.md",
        load=IndexProfile.from_artifact,
        show=deferred("headrace.index.report.tables:profile_tables"),
        page=deferred("headrace.index.report.pages:index_profile_page"),
    ),
)
