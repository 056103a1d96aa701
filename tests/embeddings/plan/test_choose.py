"""Lookahead of a plan, by the room of the caches."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.artifact as artifact_io
from headrace.embeddings import (
    CommitTimes,
    EmbeddingError,
    EmbeddingPlan,
    EmbeddingProfile,
    ExampleBytes,
    ProcessorSeconds,
    RowReuse,
    RowTransfers,
    StepCosts,
    StepRows,
    Synchronisation,
    TableAccesses,
)
from headrace.embeddings.plan.choose import JobRequirements, plan_embeddings, planned_slots
from headrace.embeddings.plan.plan import RUNNABLE
from headrace.embeddings.plan.verify import verify_embedding_plan
from headrace.errors import ArtifactError, VerificationError


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
        plan = plan_embeddings(PROFILE, JobRequirements(row_bytes=16, cache_bytes=16 * slots))
        assert planned_slots(PROFILE, plan.lookahead) <= slots
        if plan.lookahead < PROFILE.lookahead:
            assert planned_slots(PROFILE, plan.lookahead + 1) > slots
        assert plan.prefetch <= plan.lookahead

    plan = plan_embeddings(PROFILE, JobRequirements(row_bytes=16))
    assert plan.fetched_rows == 60
    assert plan.moved.fetched == 16 * 60


def test_without_a_limit_the_cache_is_as_large_as_the_longest_lookahead_needs() -> None:
    plan = plan_embeddings(
        PROFILE, JobRequirements(row_bytes=16, synchronisation=Synchronisation.LRPP)
    )
    assert plan.lookahead == PROFILE.lookahead
    assert plan == plan_embeddings(
        PROFILE,
        JobRequirements(
            row_bytes=16, cache_bytes=plan.cache_bytes, synchronisation=Synchronisation.LRPP
        ),
    )
    assert (plan.exchanged_rows, plan.critical_rows) == (160, 120)


def test_a_cache_without_room_for_a_batch_is_refused_with_the_size_needed() -> None:
    least = int(planned_slots(PROFILE, 1))
    assert (
        plan_embeddings(
            PROFILE, JobRequirements(row_bytes=1024, cache_bytes=1024 * least)
        ).lookahead
        == 1
    )
    with pytest.raises(EmbeddingError, match=r"no room for the rows of a batch: it needs"):
        plan_embeddings(PROFILE, JobRequirements(row_bytes=1024, cache_bytes=1024 * least - 1))


def test_numbers_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(EmbeddingError, match="servers is 0, needs 1 to 1024"):
        plan_embeddings(PROFILE, JobRequirements(row_bytes=16, servers=0))
    with pytest.raises(EmbeddingError, match="synchronisation is pooled, needs one of targeted"):
        plan_embeddings(
            PROFILE, JobRequirements(row_bytes=16, synchronisation=Synchronisation.POOLED)
        )


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = plan_embeddings(PROFILE, JobRequirements(row_bytes=16))
    plan.save(tmp_path / "plan")
    assert EmbeddingPlan.load(tmp_path / "plan") == plan
    assert "2 trainers" in plan.description


def costs(*, compute_s: float = 0.1, link_bytes_per_s: float = 1e6) -> StepCosts:
    return StepCosts(compute_s=compute_s, link_bytes_per_s=link_bytes_per_s)


def test_a_step_takes_as_long_as_its_busiest_resource() -> None:
    profile = replace(
        PROFILE,
        processor_seconds=ProcessorSeconds(read=1e-3, decide=5e-3, serve=1e-4, train=1e-5),
    )
    plan = plan_embeddings(profile, JobRequirements(row_bytes=16, servers=1, readers=1), costs())
    assert plan.time is not None
    assert plan.time.bound == "cacher"
    assert plan.time.step_s == plan.time.resources_s["cacher"] == pytest.approx(64 * 5e-3)
    slow = plan_embeddings(
        profile, JobRequirements(row_bytes=16, readers=1), costs(link_bytes_per_s=1e4)
    )
    assert slow.time is not None
    assert slow.time.bound.endswith("link")
    assert slow.time.resources_s[slow.time.bound] == slow.time.step_s
    long = plan_embeddings(profile, JobRequirements(row_bytes=16), costs(compute_s=10.0))
    assert long.time is not None
    assert long.time.bound == "trainers' loop"
    assert long.time.step_s >= 10


def test_bytes_beside_the_average_of_dense_gradients_slow_it() -> None:
    """Steps of four trainers took 1.4 times the prediction, which left the average alone."""
    dense_bytes, compute_s, link_bytes_per_s = 100_000, 0.09, 1e6

    def loop_s(synchronisation: Synchronisation) -> tuple[float, float]:
        job = JobRequirements(
            row_bytes=16, dense_bytes=dense_bytes, synchronisation=synchronisation, servers=1
        )
        plan = plan_embeddings(PROFILE, job, costs(compute_s=compute_s))
        assert plan.time is not None
        critical_s = plan.moved.critical / 2 / link_bytes_per_s + 2e-4
        beside = (plan.moved.dispatched + plan.moved.fetched + plan.moved.delayed) / 2
        return plan.time.resources_s["trainers' loop"] - critical_s, beside / link_bytes_per_s

    alone_s = compute_s + dense_bytes / link_bytes_per_s - compute_s / 3
    for synchronisation in RUNNABLE:
        step_s, beside_s = loop_s(synchronisation)
        assert beside_s > 0
        assert alone_s < step_s < alone_s + beside_s
        # what the average took, and the bytes that came in its share of the time
        average_s = step_s - 2 / 3 * compute_s
        assert average_s == pytest.approx(
            dense_bytes / link_bytes_per_s + beside_s * average_s / step_s
        )


def resources_s(
    profile: EmbeddingProfile, processors: int, dense_bytes: int
) -> Mapping[str, float]:
    """Return the seconds of a planned step by resource."""
    plan = plan_embeddings(
        profile,
        JobRequirements(
            row_bytes=16,
            gradient_bytes=16,
            dense_bytes=dense_bytes,
            synchronisation=Synchronisation.TARGETED,
        ),
        replace(costs(), processors=processors),
    )
    assert plan.time is not None
    return plan.time.resources_s


def test_trainers_that_share_processors_wait_for_each_others_rows() -> None:
    profile = replace(PROFILE, processor_seconds=ProcessorSeconds(train=1e-4, exchange=1e-4))

    def loop_s(processors: int, dense_bytes: int = 0) -> float:
        return resources_s(profile, processors, dense_bytes)["trainers' loop"]

    rows = PROFILE.step_rows(Synchronisation.TARGETED, PROFILE.lookahead)
    rows_s = 1e-4 * (rows.used + rows.critical) / 2
    assert loop_s(2) == loop_s(0) == loop_s(64)
    assert loop_s(1) - loop_s(2) == pytest.approx(rows_s)
    # the average of so many bytes takes the other trainer 6,250 exchanged rows' time, all exposed
    averaged = 100_000
    waited_s = loop_s(1, averaged) - loop_s(2, averaged) - rows_s
    assert waited_s == pytest.approx(1e-4 * averaged / 16, rel=0.05)


def test_shared_processors_have_the_work_of_the_average_too() -> None:
    """Of a large dense part, whose average trainers waited for, they had only that of rows."""
    profile = replace(PROFILE, processor_seconds=ProcessorSeconds(exchange=1e-4))

    averaged = 100_000  # each of two trainers sends as many, like exchanged rows of 16 bytes
    rows_s, all_s = (resources_s(profile, 2, sent)["processors"] for sent in (0, averaged))
    assert all_s - rows_s == pytest.approx(1e-4 * averaged / 16)


def test_processes_are_added_until_another_resource_bounds_the_step() -> None:
    profile = replace(PROFILE, processor_seconds=ProcessorSeconds(read=5e-3, serve=2e-3))
    plan = plan_embeddings(profile, JobRequirements(row_bytes=16), costs())
    assert plan.time is not None
    assert plan.time.bound == "trainers' loop"
    assert plan.readers == 4
    fewer = plan_embeddings(profile, JobRequirements(row_bytes=16, readers=3), costs())
    assert fewer.time is not None
    assert fewer.time.step_s > plan.time.step_s
    assert (fewer.time.bound, fewer.readers) == ("reader", 3)
    assert plan.synchronisation is Synchronisation.TARGETED


def test_the_log_of_evicted_rows_is_part_of_what_commits_take() -> None:
    """However many batches lie between two: a job had commits that took twice what was planned."""

    def planned(row_bytes: int, commit_every: int = 0) -> CommitTimes:
        plan = plan_embeddings(
            PROFILE,
            JobRequirements(row_bytes=row_bytes, commit_every=commit_every, failures_s=1.0),
            replace(costs(), link_bytes_per_s=1e12),
        )
        assert plan.commits is not None
        return plan.commits

    seldom = planned(16, 100_000).share
    assert planned(1600, 100_000).share > 50 * seldom
    logged = planned(1 << 20)
    assert logged.share > 0.05  # which no number of batches would change
    assert logged.share - planned(1 << 20, 100_000).share <= 0.011
    assert logged.every < 10_000


def test_commits_cost_least_within_their_share() -> None:
    def planned(failures_s: float) -> CommitTimes:
        plan = plan_embeddings(
            PROFILE, JobRequirements(row_bytes=16, failures_s=failures_s), costs()
        )
        assert plan.commits is not None
        assert plan.commit_every == plan.commits.every
        assert plan.commits.rows == PROFILE.dirty(PROFILE.lookahead, plan.commit_every)
        assert plan.commits.share <= 0.05
        return plan.commits

    often, seldom = planned(10), planned(1e6)
    assert often.every < seldom.every
    assert often.redone_share > seldom.redone_share
    given = plan_embeddings(PROFILE, JobRequirements(row_bytes=16, commit_every=3), costs())
    assert given.commit_every == 3
    assert plan_embeddings(PROFILE, JobRequirements(row_bytes=16)).commit_every == 50
    # one batch: all rows that stay; many: each as often as it stays
    rows = PROFILE.reuse.rows
    assert PROFILE.dirty(9, 1) == rows[1:].sum()
    assert PROFILE.dirty(9, 100) == (rows * np.arange(9)).sum()


def test_a_plan_is_proved_on_its_profile(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "profile")
    named = {"profile": PROFILE.digest, "profile_file": str(tmp_path / "profile")}
    path = tmp_path / "plan"
    for synchronisation in RUNNABLE:
        for cache_bytes in (16 * 400, None):
            plan = plan_embeddings(
                PROFILE,
                JobRequirements(
                    row_bytes=16,
                    gradient_bytes=8,
                    dense_bytes=100,
                    cache_bytes=cache_bytes,
                    synchronisation=synchronisation,
                ),
                costs(),
            )
            plan.save(path, named)
            (line,) = verify_embedding_plan(artifact_io.load(path), "plan")
            assert line.startswith("ok ")
    plan = plan_embeddings(PROFILE, JobRequirements(row_bytes=16), costs())
    changes: list[dict[str, Any]] = [
        {"rows": plan.rows + 1},
        {"critical_rows": 0.0},
        {"moved": replace(plan.moved, critical=1.0)},
    ]
    for change in changes:
        replace(plan, **change).save(path, named)
        with pytest.raises(VerificationError, match=f"plan: .*{next(iter(change))}.* is "):
            list(verify_embedding_plan(artifact_io.load(path), "plan"))
    replace(plan, cache_bytes=16 * 100).save(path, named)
    with pytest.raises(VerificationError, match="a cache has room for 100 rows"):
        list(verify_embedding_plan(artifact_io.load(path), "plan"))
    for synchronisation in RUNNABLE:  # for one, rows beyond the profile's were a ValueError
        replace(plan, lookahead=10, synchronisation=synchronisation).save(path, named)
        with pytest.raises(VerificationError, match="lookahead is 10, the profile's 9"):
            list(verify_embedding_plan(artifact_io.load(path), "plan"))
    replace(PROFILE, counted=37).save(tmp_path / "profile")
    with pytest.raises(ArtifactError, match="was made from the profile"):
        list(verify_embedding_plan(artifact_io.load(path), "plan"))
    plan.save(path)
    with pytest.raises(ArtifactError, match="names no profile"):
        list(verify_embedding_plan(artifact_io.load(path), "plan"))


def test_costs_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(EmbeddingError, match="compute_s is 0, needs "):
        costs(compute_s=0)
    with pytest.raises(EmbeddingError, match="link_bytes_per_s is 0, needs "):
        costs(link_bytes_per_s=0)
