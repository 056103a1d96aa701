"""Artifact kinds of the learned index."""

from headrace.index.plan.plan import IndexPlan
from headrace.index.profile import IndexProfile
from headrace.kinds import kind_of

PROFILE = kind_of(
    IndexProfile,
    summary="keys and operations of an index's workload: its encoding, and a sample of it",
    documentation="index.md",
    show="headrace.index.report.tables:index_profile_tables",
    page="headrace.index.report.pages:index_profile_page",
)
PLAN = kind_of(
    IndexPlan,
    summary="the configuration of an index for a workload, its trials and its runners-up",
    documentation="index.md",
    show="headrace.index.report.tables:index_plan_tables",
    verify="headrace.index.report.tables:verify_index_plan",
    page="headrace.index.report.pages:index_plan_page",
)
KINDS = (PROFILE, PLAN)
