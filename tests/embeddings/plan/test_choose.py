"""Lookahead of a plan, by the room of the caches."""

from pathlib import Path

import numpy as np
import pytest

from headrace.embeddings import (
    EmbeddingError,
    EmbeddingPlan,
    EmbeddingProfile,
    ExampleBytes,
    RowReuse,
    RowTransfers,
    StepRows,
    Synchronisation,
    TableAccesses,
)
from headrace.embeddings.plan.choose import needed_slots, plan_embeddings


def reuse(*rows: float) -> RowReuse:
    """Rows of which a half is used by both trainers, in this batch and the next."""
    counts = np.array(rows, np.float64)
    return RowReuse(
        rows=counts,
        users=1.5 * counts,
        next_users=1.5 * counts,
        receivers=0.25 * counts,
        returned=0.75 * counts,
    )


PROFILE = EmbeddingProfile(
    batch=64,
    batches=20,
    trainers=2,
    reuse=reuse(40, 30, 10, 5, 5, 4, 3, 2, 1),
    lrpp={
        2: StepRows(150, 160, 100, 60, 40, 40, 10, 10, 64),
        9: StepRows(170, 180, 60, 40, 60, 60, 20, 20, 64),
    },
    example_bytes=ExampleBytes(fields=56, ids=256, id=4, places=64, replicated_places=64),
    transfers={
        kind: RowTransfers(rows=float(number), critical_rows=number / 2)
        for number, kind in enumerate(Synchronisation)
    },
    tables=(TableAccesses(accesses=9, rows=3, rows_once=1, top_accesses=5),),
    counted=36,
)


def test_the_lookahead_is_the_longest_that_the_cache_has_room_for() -> None:
    for slots in range(300, 800):
        plan = plan_embeddings(PROFILE, row_bytes=16, cache_bytes=16 * slots)
        assert needed_slots(PROFILE, plan.lookahead) <= slots
        if plan.lookahead < PROFILE.lookahead:
            assert needed_slots(PROFILE, plan.lookahead + 1) > slots
        assert plan.prefetch <= plan.lookahead

    plan = plan_embeddings(PROFILE, row_bytes=16)
    assert plan.fetched_rows == 60
    assert plan.moved.fetched == 16 * 60


def test_without_a_limit_the_cache_is_as_large_as_the_longest_lookahead_needs() -> None:
    plan = plan_embeddings(PROFILE, row_bytes=16, synchronisation=Synchronisation.LRPP)
    assert plan.lookahead == PROFILE.lookahead
    assert plan == plan_embeddings(
        PROFILE, row_bytes=16, cache_bytes=plan.cache_bytes, synchronisation=Synchronisation.LRPP
    )
    assert (plan.exchanged_rows, plan.critical_rows) == (160, 120)


def test_a_cache_without_room_for_a_batch_is_refused_with_the_size_needed() -> None:
    least = int(needed_slots(PROFILE, 1))
    assert plan_embeddings(PROFILE, row_bytes=1024, cache_bytes=1024 * least).lookahead == 1
    with pytest.raises(EmbeddingError, match=r"no room for the rows of a batch: it needs"):
        plan_embeddings(PROFILE, row_bytes=1024, cache_bytes=1024 * least - 1)


def test_numbers_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(EmbeddingError, match="servers is 0, needs 1 to 1024"):
        plan_embeddings(PROFILE, row_bytes=16, servers=0)
    with pytest.raises(EmbeddingError, match="synchronisation is pooled, needs one of targeted"):
        plan_embeddings(PROFILE, row_bytes=16, synchronisation=Synchronisation.POOLED)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = plan_embeddings(PROFILE, row_bytes=16)
    plan.save(tmp_path / "plan")
    assert EmbeddingPlan.load(tmp_path / "plan") == plan
    assert "2 trainers" in plan.description
