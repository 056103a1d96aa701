"""Artifact kinds of compression."""

from headrace.compression.plan.plan import CompressionPlan
from headrace.compression.profile import CompressionProfile
from headrace.kinds import kind_of

PROFILE = kind_of(
    CompressionProfile,
    summary="times of one training job's step, and of codecs on its device",
    documentation="compression.md",
    show="headrace.compression.cli.show:profile_facts",
    page="headrace.compression.report.profile_page:compression_profile_page",
)
PLAN = kind_of(
    CompressionPlan,
    summary="predicted steps of one training job with every codec, and the fastest",
    documentation="compression.md",
    show="headrace.compression.cli.show:advice_tables",
    verify="headrace.compression.cli.show:verify_advice",
    page="headrace.compression.report.advice_page:advice_page",
)
KINDS = (PROFILE, PLAN)
