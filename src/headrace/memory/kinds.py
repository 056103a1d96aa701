"""Artifact kinds of training within a memory budget."""

from headrace.kinds import kind_of
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.profile import MemoryProfile

PROFILE = kind_of(
    MemoryProfile,
    summary="operators and storages of a training step, with times and bytes on one device",
    documentation="memory.md",
    show="headrace.memory.report.tables:step_tables",
    page="headrace.memory.report.pages:memory_profile_page",
)
PLAN = kind_of(
    MemoryPlan,
    summary="a schedule of a training step within a memory budget, and its certificate",
    documentation="memory.md",
    show="headrace.memory.report.tables:plan_tables",
    verify="headrace.memory.report.tables:verify_step_plan",
    page="headrace.memory.report.pages:memory_plan_page",
)
KINDS = (PROFILE, PLAN)
