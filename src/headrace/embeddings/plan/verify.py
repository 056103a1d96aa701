"""Proof that a plan's numbers are those of the profile that it names.

It shares no code with what makes plans: rows are counted here from the profile's columns, by the
distance to their next use, and bytes from these. Times are predictions, which a run alone confirms.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.artifact import Artifact
from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.embeddings.profile import EmbeddingProfile, Synchronisation
from headrace.errors import ArtifactError, VerificationError

_NEAR = 1e-6
"""Relative: the order of sums is another here."""

_COUNTED: tuple[str, ...] = (
    "rows",
    "resident_rows",
    "fetched_rows",
    "evicted",
    "critical_gradients",
    "critical_rows",
    "delayed_gradients",
    "delayed_rows",
)


def verify_embedding_plan(artifact: Artifact, source: str) -> Iterator[str]:
    """Prove a plan's numbers again, on its profile.

    Raises
    ------
    VerificationError : a number is another one by the profile; names it.
    ArtifactError : the profile cannot be read, or is not the one that the plan was made from.
    """
    plan = EmbeddingPlan.from_artifact(artifact, source)
    profile = _profile(artifact, source)
    if plan.lookahead > profile.lookahead:
        raise VerificationError(
            f"{source}: lookahead is {plan.lookahead}, the profile's {profile.lookahead}"
        )
    for name, planned, counted in _numbers(plan, profile):
        if abs(planned - counted) > _NEAR * max(1.0, abs(counted)):
            raise VerificationError(
                f"{source}: {name} is {planned:g}, by the profile it is {counted:g}: make the plan "
                "again with headrace embeddings plan"
            )
    _check_room(plan, profile, source)
    yield (
        f"ok {artifact.digest[:12]} lookahead {plan.lookahead}, {plan.rows:,.0f} rows a batch, "
        f"{plan.moved.of_trainers / 1e6:,.1f} MB a step; predicted times are not part of the proof"
    )


def _profile(artifact: Artifact, source: str) -> EmbeddingProfile:
    """Return the profile that a plan was made from."""
    digest, path = (artifact.provenance.get(name) for name in ("profile", "profile_file"))
    if not isinstance(digest, str) or not isinstance(path, str):
        raise ArtifactError(f"{source}: names no profile: make it with headrace embeddings plan")
    profile = EmbeddingProfile.load(Path(path))
    if profile.digest != digest:
        raise ArtifactError(
            f"{source}: was made from the profile {digest[:12]}, and {path} is now "
            f"{profile.digest[:12]}: make the plan again with headrace embeddings plan"
        )
    return profile


def _numbers(plan: EmbeddingPlan, profile: EmbeddingProfile) -> Iterator[tuple[str, float, float]]:
    """Yield names of a plan's numbers, as they are and as they follow from the profile."""
    yield "batch", plan.batch, profile.batch
    yield "trainers", plan.trainers, profile.trainers
    rows = _moved_rows(plan, profile)
    for name in ("rows", "resident_rows", "fetched_rows", "critical_rows"):
        yield name, getattr(plan, name), rows[name]
    yield "exchanged_rows", plan.exchanged_rows, rows["critical_rows"] + rows["delayed_rows"]
    yield "moved.fetched", plan.moved.fetched, rows["fetched_rows"] * plan.row_bytes
    yield "moved.requested", plan.moved.requested, rows["fetched_rows"] * 8
    yield "moved.written", plan.moved.written, rows["evicted"] * (8 + plan.row_bytes)
    for name in ("critical", "delayed"):
        planned = rows[f"{name}_gradients"] * plan.gradient_bytes
        planned += (rows[f"{name}_rows"] - rows[f"{name}_gradients"]) * plan.row_bytes
        yield f"moved.{name}", getattr(plan.moved, name), planned
    averaged = 2 * (plan.trainers - 1) * plan.dense_bytes
    yield "moved.averaged", plan.moved.averaged, averaged
    if plan.commits is not None:
        yield "commits.rows", plan.commits.rows, _dirty_rows(plan, profile)


def _moved_rows(plan: EmbeddingPlan, profile: EmbeddingProfile) -> Mapping[str, float]:
    """Return the rows of a step, by adding up those of each distance to their next use.

    Of exchanges, ``critical_rows`` and ``delayed_rows`` have gradients and rows together.
    """
    trainers, everywhere = plan.trainers, plan.synchronisation is Synchronisation.REPLICATED
    counts: dict[str, float] = dict.fromkeys(_COUNTED, 0.0)
    for gap, (rows, users, next_users, _, returned) in enumerate(
        zip(*(column.tolist() for column in profile.reuse), strict=True)
    ):
        stays = 0 < gap < plan.lookahead
        counts["rows"] += rows
        counts["resident_rows"] += max(1, gap) * rows if stays else rows
        counts["evicted"] += 0.0 if stays else rows
        counts["fetched_rows"] += users - next_users * stays
        when = "critical" if stays and gap == 1 else "delayed"
        gradients = users - rows
        counts[f"{when}_gradients"] += gradients
        counts[f"{when}_rows"] += gradients + returned * stays
    if everywhere:
        counts["fetched_rows"] = trainers * counts["evicted"]
        counts["critical_gradients"] = (trainers - 1) * counts["rows"]
        counts["critical_rows"] = 2 * counts["critical_gradients"]
        counts["delayed_gradients"] = counts["delayed_rows"] = 0.0
    if plan.synchronisation is Synchronisation.LRPP:
        counts.update(_lrpp_rows(plan, profile))
    return counts


def _lrpp_rows(plan: EmbeddingPlan, profile: EmbeddingProfile) -> Mapping[str, float]:
    """Return the rows of LRPP caches on the line between the two lookaheads next to the plan's."""
    counted = sorted(profile.lrpp)
    below = max((batches for batches in counted if batches <= plan.lookahead), default=counted[0])
    above = min(batches for batches in counted if batches >= plan.lookahead)
    share = 0.0 if above == below else (plan.lookahead - below) / (above - below)
    columns = zip(
        profile.lrpp[below]._fields, profile.lrpp[below], profile.lrpp[above], strict=True
    )
    rows = {name: low + share * (high - low) for name, low, high in columns}
    return {
        "fetched_rows": rows["fetched"],
        "evicted": rows["evicted"],
        **{name: rows[name] for name in ("critical_gradients", "delayed_gradients")},
        **{
            f"{when}_rows": rows[f"{when}_gradients"] + rows[f"{when}_rows"]
            for when in ("critical", "delayed")
        },
    }


def _dirty_rows(plan: EmbeddingPlan, profile: EmbeddingProfile) -> float:
    """Return the rows in caches that were used in the batches since the last commit."""
    assert plan.commits is not None
    return sum(
        rows * min(gap, plan.commits.every)
        for gap, rows in enumerate(profile.reuse.rows[: plan.lookahead].tolist())
    )


def _check_room(plan: EmbeddingPlan, profile: EmbeddingProfile, source: str) -> None:
    """Check that the caches have room at the lookahead.

    Raises
    ------
    VerificationError : they have not.
    """
    evicted = sum(
        rows for gap, rows in enumerate(profile.reuse.rows.tolist()) if not 0 < gap < plan.lookahead
    )
    occupied = plan.resident_rows + plan.prefetch * evicted
    slots = plan.cache_bytes // plan.row_bytes
    if occupied > slots + 1:
        raise VerificationError(
            f"{source}: a cache has room for {slots} rows, the lookahead {plan.lookahead} needs "
            f"{occupied:,.0f}"
        )
