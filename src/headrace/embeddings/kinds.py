"""Artifact kinds of embeddings."""

from headrace.embeddings.profile import EmbeddingProfile
from headrace.kinds import kind_of

PROFILE = kind_of(
    EmbeddingProfile,
    summary="embedding rows that a job's batches access, and how soon again",
    documentation="embeddings.md",
    show="headrace.embeddings.cli.show:access_tables",
    page="headrace.embeddings.report.profile_page:access_page",
)
KINDS = (PROFILE,)
