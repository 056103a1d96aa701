"""Artifact kinds of compression."""

from headrace.compression.plan.plan import PLAN_KIND, PLAN_SCHEMA, CompressionPlan
from headrace.compression.profile import KIND, PROFILE_SCHEMA, CompressionProfile
from headrace.kinds import ArtifactKind, deferred

KINDS = (
    ArtifactKind(
        name=KIND,
        schema=PROFILE_SCHEMA,
        summary="times of one training job's step, and of codecs on its device",
        documentation="compression.md",
        load=CompressionProfile.from_artifact,
        show=deferred("headrace.compression.cli.show:profile_facts"),
        page=deferred("headrace.compression.report.profile_page:compression_profile_page"),
        plain=lambda path: CompressionProfile.load(path).to_artifact(),
        plain_fields=frozenset({"model", "tensors", "buckets"}),
    ),
    ArtifactKind(
        name=PLAN_KIND,
        schema=PLAN_SCHEMA,
        summary="predicted steps of one training job with every codec, and the fastest",
        documentation="compression.md",
        load=CompressionPlan.from_artifact,
        show=deferred("headrace.compression.cli.show:advice_tables"),
        verify=deferred("headrace.compression.cli.show:verify_advice"),
        page=deferred("headrace.compression.report.advice_page:advice_page"),
    ),
)
