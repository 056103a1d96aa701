"""Artifact kinds of attention."""

from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.profile import AttentionProfile
from headrace.kinds import kind_of

PROFILE = kind_of(
    AttentionProfile,
    summary="likeness of a model's heads on a text",
    documentation="attention.md",
    show="headrace.attention.cli.show:likeness_tables",
    page="headrace.attention.report.profile_page:likeness_page",
)
PLAN = kind_of(
    AttentionPlan,
    summary="heads and bits that a model's cache keeps, and the loss that they add",
    documentation="attention.md",
    show="headrace.attention.cli.show:cache_tables",
    verify="headrace.attention.cli.show:verify_cache_plan",
    page="headrace.attention.report.plan_page:cache_plan_page",
)
KINDS = (PROFILE, PLAN)
