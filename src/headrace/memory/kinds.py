"""Artifact kinds of training within a memory budget."""

from headrace.kinds import ArtifactKind, deferred
from headrace.memory.plan.plan import PLAN_KIND, PLAN_SCHEMA, MemoryPlan
from headrace.memory.profile import KIND, PROFILE_SCHEMA, MemoryProfile

KINDS = (
    ArtifactKind(
        name=KIND,
        schema=PROFILE_SCHEMA,
        summary="operators and storages of a training step, with times and bytes on one device",
        documentation="memory.md",
        load=MemoryProfile.from_artifact,
        show=deferred("headrace.memory.report.tables:step_tables"),
        page=deferred("headrace.memory.report.pages:memory_profile_page"),
        plain=lambda path: MemoryProfile.load(path).to_artifact(),
        plain_fields=frozenset({"model", "storages", "operators"}),
    ),
    ArtifactKind(
        name=PLAN_KIND,
        schema=PLAN_SCHEMA,
        summary="a schedule of a training step within a memory budget, and its certificate",
        documentation="memory.md",
        load=MemoryPlan.from_artifact,
        show=deferred("headrace.memory.report.tables:plan_tables"),
        verify=deferred("headrace.memory.report.tables:verify_step_plan"),
        page=deferred("headrace.memory.report.pages:memory_plan_page"),
    ),
)
