"""Alternatives with more clusters, and plans' files with them."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.attention import AttentionError, AttentionPlan, LayerHeads, LayerPlan, StorageFormat
from headrace.attention.plan.alternatives import with_alternatives
from tests.attention.plan.test_choose import profile_of

MHA = LayerHeads(query_heads=8, key_value_heads=8, dim=64)
GQA = LayerHeads(query_heads=8, key_value_heads=4, dim=64)


def plan_of(**fields: object) -> AttentionPlan:
    layer = LayerPlan(keys=StorageFormat.INT8, values=StorageFormat.INT8, **fields)
    return AttentionPlan(layers=(layer, layer), model="m", first_tokens=7, chosen="by hand")


def sizes(plan: AttentionPlan) -> list[tuple[int, int]]:
    return [
        (alternative.layers[0].clusters, alternative.layers[0].key_heads)
        for alternative in plan.alternatives
    ]


def test_clusters_of_each_request_grow_up_to_all_heads() -> None:
    plan = with_alternatives(plan_of(heads=MHA, clusters=2, key_heads=2), None)
    assert sizes(plan) == [(4, 4), (6, 6), (8, 8)]
    for alternative in plan.alternatives:
        assert alternative.first_tokens == 7
        assert alternative.model == "m"
        assert all(layer.keys is StorageFormat.INT8 for layer in alternative.layers)
    # clusters within groups save scores and no bytes
    assert sizes(with_alternatives(plan_of(heads=GQA, clusters=6, key_heads=4), None)) == [
        (7, 4),
        (8, 4),
    ]


def test_fixed_clusters_grow_by_the_profiles_output_errors() -> None:
    profile = profile_of(GQA)
    error = np.ones((8, 8)) - np.eye(8)
    error[:, 4:6] += 5  # heads that no other represents well
    profile = replace(
        profile, layers=tuple(replace(layer, output_error=error) for layer in profile.layers)
    )
    plan = plan_of(heads=GQA, clusters=2, key_heads=1, representatives=(0, 1) * 4)
    with_profile = with_alternatives(plan, profile)
    assert sizes(with_profile) == [(4, 2), (6, 3), (8, 4)]
    for alternative in with_profile.alternatives[:2]:
        representatives = alternative.layers[0].representatives
        assert representatives is not None
        assert representatives[4:6] == (4, 5)
    assert sizes(with_alternatives(plan, None)) == [(8, 4)]


def test_all_heads_have_no_alternative() -> None:
    assert with_alternatives(plan_of(heads=MHA, clusters=8, key_heads=8), None).alternatives == ()


def test_a_plan_with_alternatives_comes_back(tmp_path: Path) -> None:
    plan = replace(
        with_alternatives(plan_of(heads=MHA, clusters=2, key_heads=2), None), output_error=0.25
    )
    plan.save(tmp_path / "plan.headrace")
    assert AttentionPlan.load(tmp_path / "plan.headrace") == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.digest != replace(plan, alternatives=()).digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_error": -1.0}, "output_error is -1.0, needs at least 0"),
        ({"output_error": float("nan")}, "output_error is nan, needs at least 0"),
        (
            {"alternatives": (plan_of(heads=MHA, clusters=2, key_heads=2),)},
            "alternatives have 4 clusters after 8, needs ever more",
        ),
        (
            {"alternatives": (plan_of(heads=GQA, clusters=6, key_heads=4),)},
            "alternatives have other heads: they are for another model",
        ),
    ],
)
def test_alternatives_that_are_none_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(AttentionError, match=message):
        replace(plan_of(heads=MHA, clusters=4, key_heads=4), **change)
