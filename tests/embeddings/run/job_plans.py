"""A plan of a small job, for tests of what runs it."""

from dataclasses import fields
from typing import Any

from headrace.embeddings import EmbeddingPlan, StepBytes, Synchronisation


def job_plan(**changes: Any) -> EmbeddingPlan:
    """Return the plan of a job of two trainers and one process of each other kind."""
    values: dict[str, Any] = {
        "batch": 16,
        "trainers": 2,
        "servers": 1,
        "readers": 1,
        "lookahead": 3,
        "prefetch": 1,
        "cache_bytes": 4096,
        "row_bytes": 8,
        "gradient_bytes": 8,
        "dense_bytes": 0,
        "commit_every": 50,
        "synchronisation": Synchronisation.TARGETED,
        "rows": 10.0,
        "fetched_rows": 5.0,
        "resident_rows": 20.0,
        "exchanged_rows": 6.0,
        "critical_rows": 2.0,
        "moved": StepBytes(**dict.fromkeys((field.name for field in fields(StepBytes)), 1.0)),
    }
    return EmbeddingPlan(**(values | changes))
