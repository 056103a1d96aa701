"""Artifact kinds of embeddings."""

from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.embeddings.profile import EmbeddingProfile
from headrace.embeddings.run.job.record import EmbeddingRecord
from headrace.kinds import kind_of

PROFILE = kind_of(
    EmbeddingProfile,
    summary="embedding rows that a job's batches access, and how soon again",
    documentation="embeddings.md",
    show="headrace.embeddings.cli.show:access_tables",
    page="headrace.embeddings.report.profile_page:access_page",
)
PLAN = kind_of(
    EmbeddingPlan,
    summary="lookahead, caches and synchronisation of a job's embedding rows",
    documentation="embeddings.md",
    show="headrace.embeddings.cli.show:lookahead_plan_tables",
    verify="headrace.embeddings.plan.verify:verify_embedding_plan",
    page="headrace.embeddings.report.plan_page:lookahead_plan_page",
)
RECORD = kind_of(
    EmbeddingRecord,
    summary="what the steps of an embedding job took, waited for and moved",
    documentation="embeddings.md",
    show="headrace.embeddings.cli.show_record:record_tables",
    page="headrace.embeddings.report.record_page:record_page",
)
KINDS = (PROFILE, PLAN, RECORD)
