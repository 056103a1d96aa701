"""Artifact kinds of the learned index."""

from headrace.index.plan.plan import PLAN_KIND, PLAN_SCHEMA, IndexPlan
from headrace.index.profile import KIND, PROFILE_SCHEMA, IndexProfile
from headrace.kinds import ArtifactKind, deferred

KINDS = (
    ArtifactKind(
        name=KIND,
        schema=PROFILE_SCHEMA,
        summary="keys and operations of an index's workload: its encoding, and a sample of it",
        documentation="index.md",
        load=IndexProfile.from_artifact,
        show=deferred("headrace.index.report.tables:index_profile_tables"),
        page=deferred("headrace.index.report.pages:index_profile_page"),
    ),
    ArtifactKind(
        name=PLAN_KIND,
        schema=PLAN_SCHEMA,
        summary="the configuration of an index for a workload, its trials and its runners-up",
        documentation="index.md",
        load=IndexPlan.from_artifact,
        show=deferred("headrace.index.report.tables:index_plan_tables"),
        verify=deferred("headrace.index.report.tables:verify_index_plan"),
        page=deferred("headrace.index.report.pages:index_plan_page"),
    ),
)
